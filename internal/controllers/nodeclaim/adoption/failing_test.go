// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package adoption_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/adoption"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// expectRefused reconciles the claim with the annotation, and checks its event.
func (i *inherited) expectRefused(message string) {
	i.T.Helper()
	i.annotate(uuid)
	i.Expect(i.reconcile().RequeueAfter).To(BeNumerically(">", 0), "it is retried")
	i.Expect(i.Events.Messages(v1alpha1.EventAdoptionRefused)).To(ConsistOf(ContainSubstring(message)))
	i.Expect(i.claim.Annotations).NotTo(HaveKey(v1alpha1.AnnotationLaunchIntent))
}

// Failures that are no mismatch of VM and claim are reported as well.
func TestAdoptFailing(t *testing.T) {
	t.Parallel()
	t.Run("forbidden", func(t *testing.T) {
		t.Parallel()
		i := inheritInPool(t, "", testenv.Scenario(func(s *pvesim.Scenario) {
			for n := range s.Roles {
				s.Roles[n].Privileges = slices.DeleteFunc(s.Roles[n].Privileges, func(p string) bool { return p == "VM.Config.Options" })
			}
		}))
		i.expectRefused("writing the ownership mark: configuring VM 20000 on host pve1: forbidden: privilege VM.Config.Options is missing on /vms/20000")
	})
	t.Run("locked", func(t *testing.T) {
		t.Parallel()
		i := inherit(t)
		i.Expect(i.Sim.SetConfigLock(vmid, "backup")).To(Succeed())
		i.expectRefused("VM 20000 is locked (backup)")
		i.Expect(i.Sim.SetConfigLock(vmid, "")).To(Succeed())
		i.reconcile()
		i.Expect(i.claim.Annotations).To(HaveKey(v1alpha1.AnnotationLaunchIntent))
	})
	t.Run("API_error", func(t *testing.T) {
		t.Parallel()
		i := inherit(t)
		i.AddFault(pvesim.Fault{Method: http.MethodPut, Path: "/nodes/*/qemu/*/config", Status: http.StatusInternalServerError, Message: "unable to write config"})
		i.expectRefused("unable to write config")
	})
	t.Run("invisible", func(t *testing.T) {
		t.Parallel()
		i := inheritInPool(t, pvesim.PoolID, testenv.Scenario(pvesim.PoolScoped, func(s *pvesim.Scenario) {
			for n := range s.Users {
				if s.Users[n].ID == "root@pam" {
					s.Users[n].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
				}
			}
		}))
		config := testenv.ClusterConfig(i.Sim, testenv.Region)
		config.TokenID, config.TokenSecret = "root@pam!admin", "secret"
		admin := testenv.NewClient(t, config, proxmox.Options{})
		i.Expect(admin.MoveToPool(t.Context(), vmid, pvesim.PoolID, "")).To(Succeed())
		i.Refresh()
		const message = "the token may not read VM 20000 of region region-1, so it cannot be adopted"
		i.Expect(i.reconcile().RequeueAfter).To(BeNumerically(">", 0))
		i.Expect(i.Events.Messages(v1alpha1.EventVMNotVisible)).To(ConsistOf(ContainSubstring(message)))
		i.expectRefused(message)
	})
}

// limitedReads is a client that requires a deadline for reading a VM.
type limitedReads struct{ proxmox.Client }

func (c limitedReads) VMConfig(ctx context.Context, host string, vmid int) (proxmox.VMConfig, error) {
	if _, ok := ctx.Deadline(); !ok {
		return proxmox.VMConfig{}, errors.New("no deadline")
	}
	return c.Client.VMConfig(ctx, host, vmid)
}

// VMs that no list shows are read at a rate that does not depend on their number.
func TestAdoptUnlisted(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.NoPolling())
	w.Clients[testenv.Region] = limitedReads{w.Client}
	w.Restart(true)
	claims := make([]*karpv1.NodeClaim, 2)
	for n := range claims {
		claims[n] = w.Claim(fmt.Sprint("a", n), w.NodeClass)
		claims[n].Status.ProviderID = fmt.Sprintf("proxmox://region-1/%d", vmid+n)
	}
	w.Sim.ResetRequests()
	// expectReads reconciles all claims several times, and checks how often each VM was read.
	expectReads := func(want ...int) {
		t.Helper()
		for range 3 {
			for _, claim := range claims {
				result, err := adoption.NewController(w.Instances.Adopter, w.Events).Reconcile(t.Context(), claim)
				w.Expect(err).NotTo(HaveOccurred())
				w.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
			}
		}
		for n, count := range want {
			w.Expect(w.Sim.CountRequests("GET", fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid+n))).To(Equal(count), "VM %d", vmid+n)
		}
	}
	expectReads(1, 0)
	w.Clock.Advance(time.Minute)
	expectReads(1, 1)
	w.Clock.Advance(time.Minute)
	expectReads(1, 1)
	w.Clock.Advance(15 * time.Minute)
	expectReads(2, 1)
}
