// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
)

func TestMachineDrift(t *testing.T) {
	t.Parallel()
	launched := instance.Intent{
		Region: "home", Host: "pve1", Machine: "db-1",
		Network: network.Assignment{Interfaces: map[string]network.InterfaceAddresses{"net0": {Address4: netip.MustParsePrefix("10.0.0.11/24")}}},
	}
	for name, c := range map[string]struct {
		machines []v1alpha1.Machine
		change   func(*instance.Intent)
		want     string // empty if it does not drift
	}{
		"unchanged": {machines: []v1alpha1.Machine{{
			Name: "db-1", Zone: "pve1", Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address4: "10.0.0.11"}},
		}}},
		"parked": {
			machines: []v1alpha1.Machine{{Name: "db-1"}}, change: func(in *instance.Intent) { in.Parked, in.Machine = true, "" },
		},
		"less_fixed": {machines: []v1alpha1.Machine{{Name: "db-1"}}},
		"another_host": {
			machines: []v1alpha1.Machine{{Name: "db-1", Zone: "pve2"}},
			want:     "machine db-1 was moved from host pve1 of region home to host pve2",
		},
		"another_region": {machines: []v1alpha1.Machine{{Name: "db-1", Zone: "pve1", Region: "away"}}, want: "was moved"},
		"another_address": {
			machines: []v1alpha1.Machine{{Name: "db-1", Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address4: "10.0.0.12"}}}},
			want:     "the address of interface net0 of machine db-1 changed to 10.0.0.12",
		},
		"new_address": {
			machines: []v1alpha1.Machine{{Name: "db-1", Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address6: "fd00::1"}}}},
			want:     "changed to fd00::1",
		},
		"removed":       {machines: []v1alpha1.Machine{{Name: "db-2"}}, want: "has no machine db-1 any more"},
		"first_machine": {machines: []v1alpha1.Machine{{Name: "db-1"}}, change: func(in *instance.Intent) { in.Machine = "" }, want: "has machines now"},
		"no_machines":   {change: func(in *instance.Intent) { in.Machine = "" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := launched
			if c.change != nil {
				c.change(&in)
			}
			got := instance.MachineDrift(in, &v1alpha1.ProxmoxNodeClass{Spec: v1alpha1.ProxmoxNodeClassSpec{Machines: c.machines}})
			if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("drift is %q, want %q", got, c.want)
			}
		})
	}
}
