// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

func TestHostsToKeepAwake(t *testing.T) {
	t.Parallel()
	e := newEnv(t, 2)
	p := e.process()
	pve1, pve2 := inventory.HostName{Region: region, Host: "pve1"}, inventory.HostName{Region: region, Host: "pve2"}
	e.Expect(p.HostsToKeepAwake(e.desired())).To(ConsistOf(pve1, pve2))
	p.reconcileUntilComplete()
	e.Expect(p.HostsToKeepAwake(e.desired())).To(BeEmpty())

	p.Inventory().SetSleeping(map[inventory.HostName]inventory.Sleep{pve2: {State: inventory.Asleep}})
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL += "?changed" })
	for range 2 {
		e.Expect(p.HostsToKeepAwake(e.desired())).To(ConsistOf(pve1, pve2), "a template of another generation is needed")
	}
	p.Inventory().SetSleeping(nil)
	e.Expect(p.HostsToKeepAwake(e.desired())).To(ConsistOf(pve1, pve2))
	p.Inventory().SetSleeping(map[inventory.HostName]inventory.Sleep{pve2: {State: inventory.Asleep}})
	e.Expect(p.HostsToKeepAwake(e.desired())).To(ConsistOf(pve1), "it was woken once")

	e.object = e.object.DeepCopy()
	e.object.DeletionTimestamp = new(metav1.Now())
	e.Expect(p.HostsToKeepAwake(e.desired())).To(ConsistOf(pve1, pve2))
}
