// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"

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
		inv, err := inventory.New(nil, inventory.Options{})
		if err != nil {
			t.Fatal(err)
		}
		types, err := instancetype.New(instancetype.Deps{Inventory: inv, CPULayouts: cpuLayouts(policy, nil)})
		if err != nil {
			t.Fatal(err)
		}
		for n, class := range []*v1alpha1.ProxmoxNodeClass{unset, unbound, bound} {
			need, _ := types.Need(class, "", testenv.InstanceType, placement.Zone{})
			if got := need.Layout.Bound; got != want[n] {
				t.Errorf("node-policy %s, spec.cpu %+v: bound is %v, want %v", policy, class.Spec.CPU, got, want[n])
			}
		}
	}
}
