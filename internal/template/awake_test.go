// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

func TestHostsToKeepAwake(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	p := e.process()
	awake := func() []inventory.HostName {
		return p.HostsToKeepAwake(e.desired(), func(_ string, vmid int) string { return e.inUse[vmid] })
	}
	pve1, pve2 := inventory.HostName{Region: region, Host: "pve1"}, inventory.HostName{Region: region, Host: "pve2"}
	e.Expect(awake()).To(ConsistOf(pve1, pve2))
	p.reconcileUntilComplete()
	e.Expect(awake()).To(BeEmpty())

	p.Inventory().SetSleeping(map[inventory.HostName]inventory.Sleep{pve2: {State: inventory.Asleep}})
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL += "?changed" })
	for range 2 {
		e.Expect(awake()).To(ConsistOf(pve1, pve2), "a template of another generation is needed")
	}
	p.Inventory().SetSleeping(nil)
	e.Expect(awake()).To(ConsistOf(pve1, pve2))
	p.Inventory().SetSleeping(map[inventory.HostName]inventory.Sleep{pve2: {State: inventory.Asleep}})
	e.Expect(awake()).To(ConsistOf(pve1), "it was woken once")

	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	e.Expect(awake()).To(ConsistOf(pve1, pve2))
	for _, owned := range template.ListOwned(p.Inventory().View(), kubeCluster, uid) {
		e.inUse[owned.VMID] = "a node is a linked clone of it"
	}
	e.Expect(awake()).To(BeEmpty(), "it cannot be deleted yet")
}
