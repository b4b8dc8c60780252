// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// expectRefused reconciles the claim with an annotation, and checks its event.
func (i *inherited) expectRefused(annotation, message string) {
	i.T.Helper()
	i.annotate(annotation)
	i.Expect(i.reconcile()).To(Equal(retried))
	i.Expect(i.Events.Messages(v1alpha1.EventAdoptionRefused)).To(ConsistOf(ContainSubstring(message)))
	i.Expect(i.claim.Annotations).NotTo(HaveKey(v1alpha1.AnnotationLaunchedBy))
}

func TestAdoptRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*inherited)
		value  string
		want   string
	}{
		"other_UUID":       {value: otherUUID, want: "VM 20000 has the SMBIOS UUID \"" + uuid},
		"no_UUID":          {value: "true", want: `names the VM "true"`},
		"other_name":       {func(i *inherited) { i.set("name", "database") }, uuid, `VM 20000 is named "database"`},
		"no_VM":            {func(i *inherited) { i.DestroyByHand("pve1", vmid) }, uuid, "shows no VM 20000"},
		"node_of_other_VM": {func(i *inherited) { i.reportUUID(otherUUID) }, uuid, "the node does not run in this VM"},
		"other_region": {func(i *inherited) {
			testenv.ModifyStatus(i.Env, i.claim, func(c *karpv1.NodeClaim) { c.Status.ProviderID = "proxmox://elsewhere/20000" })
		}, uuid, `region "elsewhere" is not in the cloud config`},
		"other_kubernetes_cluster": {func(i *inherited) {
			i.set("description", ownership.Mark{VMID: vmid, KubeCluster: "another", ClaimUID: string(i.claim.UID)}.Notes(""))
		}, uuid, "belongs to another Kubernetes cluster"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			i := inherit(t, "")
			if test.change != nil {
				test.change(i)
			}
			i.Sim.ResetRequests()
			i.expectRefused(test.value, test.want)
			i.Expect(i.Sim.Requests()).NotTo(ContainElement(HaveField("Method", Not(Equal("GET")))))
		})
	}
}

// Failures that are no mismatch of VM and claim are reported as well.
func TestAdoptFailing(t *testing.T) {
	t.Parallel()
	forbidden := testenv.Scenario(func(s *pvesim.Scenario) {
		for n := range s.Roles {
			s.Roles[n].Privileges = slices.DeleteFunc(s.Roles[n].Privileges, func(p string) bool { return p == "VM.Config.Options" })
		}
	})
	const missing = "writing the ownership mark: configuring VM 20000 on host pve1: forbidden: privilege VM.Config.Options is missing on /vms/20000"
	refused := pvesim.Fault{Method: http.MethodPut, Path: "/nodes/*/qemu/*/config", Status: http.StatusInternalServerError, Message: "unable to write config"}
	for name, test := range map[string]struct {
		options       []testenv.Option
		fail, recover func(*inherited)
		want          string
	}{
		"forbidden": {options: []testenv.Option{forbidden}, want: missing},
		"locked": {
			fail:    func(i *inherited) { i.Expect(i.Sim.SetConfigLock(vmid, "backup")).To(Succeed()) },
			recover: func(i *inherited) { i.Expect(i.Sim.SetConfigLock(vmid, "")).To(Succeed()) }, want: "VM 20000 is locked (backup)",
		},
		"API_error": {fail: func(i *inherited) { i.AddFault(refused) }, recover: func(i *inherited) { i.Sim.ClearFaults() }, want: refused.Message},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			i := inherit(t, "", test.options...)
			if test.fail != nil {
				test.fail(i)
			}
			i.expectRefused(uuid, test.want)
			if test.recover != nil {
				test.recover(i)
				i.Expect(i.reconcile()).To(BeZero())
				i.Expect(i.claim.Annotations).To(HaveKey(v1alpha1.AnnotationLaunchedBy))
			}
		})
	}
}

func TestAdoptInvisible(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		i := inherit(t, pvesim.PoolID, testenv.Scenario(pvesim.PoolScoped, func(s *pvesim.Scenario) {
			for n := range s.Users {
				if s.Users[n].ID == "root@pam" {
					s.Users[n].Tokens = []pvesim.Token{{ID: "admin", Secret: "secret"}}
				}
			}
		}))
		config := testenv.ClusterConfig(i.Sim, testenv.Region)
		config.TokenID, config.TokenSecret = "root@pam!admin", "secret"
		i.Expect(testenv.NewClient(t, i.Sim, config).MoveToPool(t.Context(), vmid, pvesim.PoolID, "")).To(Succeed())
		i.Refresh()
		const message = "the token may not read VM 20000 of region region-1, so it cannot be adopted"
		i.Expect(i.reconcile()).To(Equal(retried))
		i.Expect(i.Events.Messages(v1alpha1.EventVMNotVisible)).To(ConsistOf(ContainSubstring(message)))
		i.expectRefused(uuid, message)
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
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.NewFake(t, testenv.NoPolling())
		w.Clients[testenv.Region] = limitedReads{w.Client}
		w.Restart(true)
		claims := make([]*karpv1.NodeClaim, 2)
		for n := range claims {
			claims[n] = w.Claim(fmt.Sprint("a", n), w.NodeClass)
			claims[n].Status.ProviderID = fmt.Sprintf("proxmox://region-1/%d", vmid+n)
		}
		for _, step := range []struct {
			wait time.Duration
			// reads is how often each VM was read.
			reads []int
		}{{0, []int{1, 0}}, {time.Minute, []int{1, 1}}, {time.Minute, []int{1, 1}}, {15 * time.Minute, []int{2, 1}}} {
			w.Clock.Advance(step.wait)
			for range 3 {
				for _, claim := range claims {
					w.Expect(adoption.NewController(w.Instances.Adopter, w.Events).Reconcile(t.Context(), claim)).To(Equal(retried))
				}
			}
			for n, count := range step.reads {
				w.Expect(w.Sim.CountRequests("GET", fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid+n))).To(Equal(count), "VM %d", vmid+n)
			}
		}
	})
}
