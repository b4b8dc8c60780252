// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestVMs contains tests for any Proxmox, whether its guests can join or not: VMs match their
// class, exist once and are deleted; other guests are not touched.
func TestVMs(t *testing.T) {
	t.Parallel()
	e := newEnv(t, setup{hosts: 2, version: "9.2", args: []string{"--orphan-grace-period", "5s"}})
	before := e.holdings(NewWithT(t))
	p := e.newNodePool(t, "any", nil)
	p.deployPods(t, 1)
	var claim *karpv1.NodeClaim
	t.Run("controller_killed_during_launch", func(t *testing.T) { claim = p.killedDuringLaunch(t) })
	t.Run("orphan", func(t *testing.T) { p.orphanDeleted(t, claim) })
	t.Run("VMID_reused", p.vmidReused)
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}

// killedDuringLaunch kills the controller when the VM appears in Proxmox and lets another one
// complete the launch.
func (p *nodePool) killedDuringLaunch(t *testing.T) *karpv1.NodeClaim {
	g := NewWithT(t)
	was := p.killDuringLaunch(t)
	must(t, p.controller.Start(p.ctx))
	claim := p.waitForClaim(t, "is launched", p.launched)
	g.Expect(claim.UID).To(Equal(was.UID))
	vms := p.vms(g)
	g.Expect(vms).To(HaveLen(1))
	vm := vms[0]
	g.Expect(intent(was)).To(Equal(vm.VMID))
	g.Expect(vm).To(And(HaveField("Status", "running"), HaveField("Name", claim.Name)))
	g.Expect(vm.Config).To(And(
		HaveKeyWithValue("smbios1", ContainSubstring(string(claim.UID))), HaveKeyWithValue("tags", ContainSubstring("karpenter")),
		HaveKeyWithValue("cores", BeEquivalentTo(claim.Status.Capacity.Cpu().Value()))))
	var disks []int64
	for _, key := range slices.Sorted(maps.Keys(vm.Config)) {
		if value := fmt.Sprint(vm.Config[key]); strings.Contains(value, "size=") && !strings.Contains(value, "media=cdrom") {
			disks = append(disks, proxmox.ParseDrive(key, value).SizeBytes)
		}
	}
	size, err := p.kit.Class.Spec.BootDevice.Size.Bytes()
	must(t, err)
	g.Expect(disks).To(HaveExactElements(BeNumerically(">=", size)))
	return claim
}

// killDuringLaunch kills the controller as soon as the NodePool has a VM, and returns its NodeClaim. It polls without delay
// because the steps of a launch are short.
func (p *nodePool) killDuringLaunch(t *testing.T) *karpv1.NodeClaim {
	t.Helper()
	if p.proxmox != nil {
		// On a busy machine, the launch must not be completed before the controller is killed.
		fault, err := p.proxmox.AddFault(pvesim.Fault{Task: "qmstart", Delay: pvesim.Duration(10 * time.Second * speed), Count: 1})
		must(t, err)
		defer p.proxmox.RemoveFault(fault)
	}
	NewWithT(t).Eventually(func(g Gomega) {
		claims := p.claims(g)
		g.Expect(claims).NotTo(BeEmpty())
		p.vmOf(g, &claims[0])
	}).WithTimeout(timeout()).WithPolling(time.Millisecond).Should(Succeed())
	p.controller.Kill()
	claim := p.waitForClaim(t, "has an intent", hasIntent)
	NewWithT(t).Expect(p.launched(claim)).NotTo(Succeed(), "the controller was killed too late")
	return claim
}

// orphanDeleted deletes a NodeClaim without its finalizer. Its VM must be deleted, and no other guest.
func (p *nodePool) orphanDeleted(t *testing.T, claim *karpv1.NodeClaim) {
	g := NewWithT(t)
	vm := p.vmOf(g, claim)
	office := p.createForeignGuest(t, vm.Host, 0, url.Values{"name": {"office"}})
	// A copy has the same notes and UUID as the original.
	copied := p.createForeignGuest(t, vm.Host, 0, url.Values{"name": {"copied"}, "description": {vm.Notes()}, "smbios1": {fmt.Sprint(vm.Config["smbios1"])}})

	p.scale(t, 0) // otherwise Karpenter creates another one
	orphaned := claim.DeepCopy()
	must(t, p.kube.Delete(p.ctx, claim))
	must(t, client.IgnoreNotFound(p.kube.Patch(p.ctx, orphaned, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))))
	p.eventually(t, "the orphan to be deleted", func(g Gomega) { g.Expect(vmids(p.guests(g))).NotTo(ContainElement(vm.VMID)) })
	from := p.rounds(g)
	p.eventually(t, "rounds of the garbage collector", func(g Gomega) { g.Expect(p.rounds(g) - from).To(BeNumerically(">", 3)) })
	for _, was := range []harness.Guest{office, copied} {
		g.Expect(p.guest(g, was.VMID)).To(Equal(was))
		must(t, p.api.Destroy(p.ctx, was))
	}
	p.waitUntilGone(t, *claim)
}

// rounds returns the number of the garbage collector's reconciles.
func (e *env) rounds(g Gomega) float64 {
	n, err := e.controller.Metric(e.ctx, "controller_runtime_reconcile_total", map[string]string{"controller": "nodeclaim.garbagecollection.proxmox"})
	g.Expect(err).NotTo(HaveOccurred())
	return n
}

// vmidReused deletes the VM while no controller runs and creates another guest with its VMID.
func (p *nodePool) vmidReused(t *testing.T) {
	g := NewWithT(t)
	must(t, harness.Scale(p.ctx, p.kube, p.name, 1))
	first := p.waitForClaim(t, "is launched", p.launched)
	vm := p.vmOf(g, first)
	p.controller.Stop()
	must(t, p.api.Destroy(p.ctx, vm))
	theirs := p.createForeignGuest(t, vm.Host, vm.VMID, url.Values{"name": {"foreign"}})
	must(t, p.controller.Start(p.ctx))
	p.waitForDeletion(t, first)
	p.waitForClaim(t, "replaces the first", p.launched)
	p.deleteClaims(t)
	g.Expect(p.guest(g, vm.VMID)).To(Equal(theirs))
	must(t, p.api.Destroy(p.ctx, theirs))
}

// createForeignGuest creates a guest that does not belong to the controller, without disk or
// network. With VMID 0 it uses the highest unused one, which the controller is unlikely to choose.
func (e *env) createForeignGuest(t *testing.T, host string, vmid int, config url.Values) harness.Guest {
	t.Helper()
	g := NewWithT(t)
	if vmid == 0 {
		vmid = 99999
		if suite.lab != nil {
			vmid = suite.lab.VMIDs.To
		}
		for used := vmids(e.guests(g)); slices.Contains(used, vmid); {
			vmid--
		}
	}
	config.Set("vmid", strconv.Itoa(vmid))
	config.Set("memory", "128")
	config.Set("description", config.Get("description")+"\n\n"+harness.TestNotes(e.cluster, vmid))
	if suite.lab != nil && suite.lab.ResourcePool != "" {
		config.Set("pool", suite.lab.ResourcePool) // otherwise the token has no permission
	}
	must(t, e.api.Run(e.ctx, http.MethodPost, "/nodes/"+host+"/qemu", config))
	return e.guest(g, vmid)
}

func vmids(vms []harness.Guest) (out []int) {
	for _, vm := range vms {
		out = append(out, vm.VMID)
	}
	return out
}
