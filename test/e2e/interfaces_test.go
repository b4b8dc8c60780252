// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestInterfaces checks that VMs get the interfaces that only their NodeClass defines, with addresses of a pool.
func TestInterfaces(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it has a second bridge"))
	for _, version := range []string{"8.4", "9.2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, setup{hosts: 1, version: version, scenario: func(s *pvesim.Scenario) {
				s.Hosts[0].Bridges = append(s.Hosts[0].Bridges, pvesim.Bridge{Name: "vmbr1", VLANAware: true})
			}})
			p := e.newNodePool(t, "interfaces", func(kit *harness.Kit) {
				kit.Class.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{
					Name: "net1", Address4: &v1alpha1.AddressSource{CIDR: "10.77.0.0/24"},
					InterfaceDevice:  v1alpha1.InterfaceDevice{Bridge: "vmbr1", VLAN: new(int32(7)), MTU: new(int32(9000)), Queues: new(int32(1))},
					InterfaceRouting: v1alpha1.InterfaceRouting{DefaultRoute: new(false), Routes: []v1alpha1.InterfaceRoute{{To: "10.78.0.0/16", Via: "10.77.0.1"}}},
				}}}
			})
			p.deployPods(t, 1)
			p.waitForPods(t, 1)
			vm := vmOf(t, p, p.waitForClaim(t, "is settled", settled))
			if nic := fmt.Sprint(vm.Config["net1"]); !strings.HasPrefix(nic, "virtio=") || !strings.HasSuffix(nic, ",bridge=vmbr1,mtu=9000,queues=1,tag=7") {
				t.Errorf("the VM has net1 %q", nic)
			}
			if address := fmt.Sprint(vm.Config["ipconfig1"]); !strings.HasPrefix(address, "ip=10.77.0.") {
				t.Errorf("the VM has ipconfig1 %q", address)
			}
			p.deleteAllClaims(t)
		})
	}
}
