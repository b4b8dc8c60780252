// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// The policy applies to NodeClasses without spec.cpu.
func TestNodePolicy(t *testing.T) {
	t.Parallel()
	unset, unbound, bound := &v1alpha1.ProxmoxNodeClass{}, &v1alpha1.ProxmoxNodeClass{}, &v1alpha1.ProxmoxNodeClass{}
	unbound.Spec.CPU = &v1alpha1.CPULayout{}
	bound.Spec.CPU = &v1alpha1.CPULayout{NUMA: v1alpha1.NUMABind}
	for policy, want := range map[string][]bool{
		nodePolicySimple: {false, false, true},
		nodePolicyStatic: {true, false, true},
	} {
		g := NewWithT(t)
		inv, err := inventory.New(nil, inventory.Options{})
		g.Expect(err).NotTo(HaveOccurred())
		types, err := instancetype.New(instancetype.Deps{Inventory: inv, CPULayouts: cpuLayouts(policy, nil)})
		g.Expect(err).NotTo(HaveOccurred())
		for n, class := range []*v1alpha1.ProxmoxNodeClass{unset, unbound, bound} {
			need, _ := types.Need(class, "", testenv.InstanceType, placement.Zone{})
			g.Expect(need.Layout.Bound).To(Equal(want[n]), "node-policy %s, spec.cpu %+v", policy, class.Spec.CPU)
		}
	}
}
