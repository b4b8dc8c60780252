// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// expectRefused reconciles the claim, and checks its event. Neither its VM nor the claim is changed.
func (i *inherited) expectRefused(reason, message string) {
	i.T.Helper()
	i.Sim.ResetRequests()
	i.Expect(i.reconcile()).To(Equal(retried))
	i.Expect(i.Events.Messages(reason)).To(ConsistOf(ContainSubstring(message)))
	i.Expect(i.claim.Annotations).NotTo(HaveKey(v1alpha1.AnnotationLaunchedBy))
	i.Expect(i.Sim.Requests()).NotTo(ContainElement(HaveField("Method", Not(Equal("GET")))))
}

// A VM whose mark, claim and node do not match is neither adopted nor deleted.
func TestAdoptRefused(t *testing.T) {
	t.Parallel()
	lock := func(lock string) func(*inherited) {
		return func(i *inherited) { i.Expect(i.Sim.SetConfigLock(vmid, lock)).To(Succeed()) }
	}
	for name, test := range map[string]struct {
		mark          func(*ownership.Mark)
		fail, recover func(*inherited)
		want          string
	}{
		"other_UUID":       {mark: func(m *ownership.Mark) { m.UUID = otherUUID }, want: "SMBIOS UUID is not the one"},
		"no_UUID":          {mark: func(m *ownership.Mark) { m.UUID = "" }, want: "SMBIOS UUID is not the one"},
		"other_VMID":       {mark: func(m *ownership.Mark) { m.VMID = 20001 }, want: "written for VM 20001"},
		"other_claim":      {mark: func(m *ownership.Mark) { m.ClaimUID = otherUUID }, want: "belongs to another NodeClaim"},
		"other_cluster":    {mark: func(m *ownership.Mark) { m.KubeCluster = "another" }, want: "belongs to another Kubernetes cluster"},
		"other_name":       {fail: func(i *inherited) { i.set("name", "database") }, recover: func(i *inherited) { i.set("name", i.claim.Name) }, want: `its name is "database"`},
		"node_of_other_VM": {fail: func(i *inherited) { i.reportUUID(otherUUID) }, recover: func(i *inherited) { i.reportUUID(uuid) }, want: "the node does not run in this VM"},
		"locked":           {fail: lock("backup"), recover: lock(""), want: "it is locked (backup)"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			i := inherit(t, "")
			if test.mark == nil {
				test.mark = func(*ownership.Mark) {}
			}
			i.mark(test.mark)
			if test.fail != nil {
				test.fail(i)
			}
			i.expectRefused(v1alpha1.EventAdoptionRefused, test.want)
			i.Restart(true) // it reads the configuration
			i.Expect(i.kept()).To(BeTrue())
			i.Expect(i.Kube.Delete(t.Context(), i.claim)).To(Succeed())
			i.Expect(i.blocked(v1alpha1.EventAdoptionRefused)).To(ContainSubstring(test.want))
			i.expectRunning()
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
					w.Expect(newVMUpdateController(w, w.Kube).Reconcile(t.Context(), claim)).To(Equal(retried))
				}
			}
			for n, count := range step.reads {
				w.Expect(w.Sim.CountRequests("GET", fmt.Sprintf("/nodes/pve1/qemu/%d/config", vmid+n))).To(Equal(count), "VM %d", vmid+n)
			}
		}
	})
}
