// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestNodes contains tests that share an environment. Each has its own NodePool. Afterwards
// Proxmox must be as before.
func TestNodes(t *testing.T) {
	t.Parallel()
	e := newEnv(t, setup{})
	if e.proxmox != nil { // the tests do not write to a lab's hosts
		must(t, e.plane.PlaceSnippet(e.ctx, e.proxmox, e.plane.Server, e.region))
	}
	before := e.holdings(NewWithT(t))
	runShared(t, map[string]func(*testing.T){
		"scale_up_and_down":  e.scaleUpAndDown,
		"spread_over_hosts":  e.spreadOverHosts,
		"proxmox_cloud_init": e.proxmoxDrive,
	})
	if !t.Failed() {
		e.expectUnchanged(t, before)
	}
}

// scaleUpAndDown launches a Node for a pod. Consolidation deletes it when the pod is deleted.
func (e *env) scaleUpAndDown(t *testing.T) {
	needs(t, guestsThatJoin())
	g, taint := NewWithT(t), corev1.Taint{Key: "dedicated", Value: "blue", Effect: corev1.TaintEffectNoSchedule}
	p := e.newNodePool(t, "blue", func(kit *harness.Kit) {
		kit.Pool.Spec.Template.Labels = map[string]string{"team": "blue"}
		kit.Pool.Spec.Template.Spec.Taints = []corev1.Taint{taint}
	})
	claim, node := p.oneNode(t)
	vm := p.vmOf(g, claim)
	wantID := v1alpha1.ProviderID{Region: e.region, VMID: vm.VMID}.String()
	g.Expect([]string{node.Spec.ProviderID, claim.Status.ProviderID}).To(HaveEach(wantID))
	g.Expect(node.Status.NodeInfo.SystemUUID).To(BeEquivalentTo(claim.UID))
	for key, want := range map[string]string{
		"team": "blue", corev1.LabelTopologyZone: vm.Host, corev1.LabelTopologyRegion: e.region,
		karpv1.NodePoolLabelKey: p.name, corev1.LabelInstanceTypeStable: claim.Labels[corev1.LabelInstanceTypeStable],
		karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeOnDemand,
	} {
		g.Expect(node.Labels).To(HaveKeyWithValue(key, want))
	}
	g.Expect(node.Spec.Taints).To(And(ContainElement(taint), Not(ContainElement(HaveField("Key", karpv1.UnregisteredTaintKey)))))
	if e.proxmox != nil {
		joined, problems, err := e.proxmox.BootRecorder.CheckJoins(e.ctx, e.kube, []string{node.Name})
		must(t, err)
		g.Expect(joined).To(Equal(1), "the node did not join with its own token: %v", problems)
	}
	p.eventually(t, "the boot drive to be deleted", func(g Gomega) {
		g.Expect(fmt.Sprint(p.vmOf(g, claim).Config)).NotTo(ContainSubstring(".iso"))
		p.expectNoBootData(g, *claim)
	})
	p.scale(t, 0)
	p.waitUntilGone(t, *claim)
}

// spreadOverHosts checks that pods that must be spread over zones get VMs on as many hosts.
func (e *env) spreadOverHosts(t *testing.T) {
	needs(t, guestsThatJoin(), hosts(2))
	all, err := e.api.Hosts(e.ctx)
	must(t, err)
	up := slices.Sorted(maps.Keys(all))
	if suite.lab != nil {
		up = suite.lab.Hosts
		needs(t, capacity(len(up)))
	}
	p := e.newNodePool(t, "spread", nil)
	p.deployPods(t, int32(len(up)), onePerHost)
	p.waitForPods(t, len(up))
	var used []string
	for _, vm := range p.vms(NewWithT(t)) {
		used = append(used, vm.Host)
	}
	NewWithT(t).Expect(used).To(ConsistOf(up))
	p.deleteClaims(t)
}

// proxmoxDrive checks boot data by Proxmox, as in the example. The VM is identified by its
// serial number.
func (e *env) proxmoxDrive(t *testing.T) {
	needs(t, simulator("it writes files on the hosts"))
	class, err := harness.ProxmoxCloudInitClass()
	must(t, err)
	p := e.newNodePool(t, "own-drive", func(kit *harness.Kit) { kit.Class.Spec.MetadataOptions = class.Spec.MetadataOptions })
	claim, node := p.oneNode(t)
	NewWithT(t).Expect(node.Spec.ProviderID).To(Equal(claim.Status.ProviderID))
	p.waitForNoTaints(t, claim)
	p.deleteClaims(t)
}
