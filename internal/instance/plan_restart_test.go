// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// The controller is restarted with 50 pending claims: one with the only device, one with a machine and its
// address. Nothing is given out twice, neither to them nor to a claim that is planned while they wait.
func TestRestartPendingClaims(t *testing.T) {
	const pending = 50
	testenv.With(testenv.Hosts(2), testenv.NoPolling(), testenv.Scenario(withHardware, func(s *pvesim.Scenario) {
		for i := range s.Hosts {
			s.Hosts[i].Cores, s.Hosts[i].Memory = 64, 256*pvesim.GiB
		}
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.100-10.0.0.160"}, Gateway: "10.0.0.1"})
		device, machine := w.NodeClass.DeepCopy(), w.NodeClass.DeepCopy()
		device.Name, machine.Name = "device", "machine"
		device.Spec.Hardware = &v1alpha1.Hardware{PCI: []v1alpha1.PCIDevice{{Mapping: "gpu"}}}
		machine.Spec.Machines = []v1alpha1.Machine{{
			Name: "db-1", Zone: "pve1", Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address4: "10.0.0.11"}},
		}}
		class := func(i int) *v1alpha1.ProxmoxNodeClass {
			switch i {
			case 0:
				return device
			case 1:
				return machine
			}
			return w.NodeClass
		}
		claims := make([]*karpv1.NodeClaim, pending)
		for i := range claims {
			claims[i] = p.Planned(fmt.Sprintf("pool-%d", i), class(i))
		}
		before := map[string]instance.Intent{}
		for _, claim := range claims {
			before[claim.Name] = w.Intent(claim)
		}

		p = w.StartProcess()
		for name, class := range map[string]*v1alpha1.ProxmoxNodeClass{"late-device": device, "late-machine": machine} {
			_, err := p.Instances.Planner.Plan(w.Context(), w.Claim(name, class), class, false)
			w.Expect(err).To(HaveOccurred(), name)
		}
		late := p.Planned("late", w.NodeClass)
		vmids, addresses := map[int]string{}, map[string]string{}
		for i, claim := range append(claims, late) {
			p.MustLaunch(w.Stored(claim), class(i))
			in := w.Intent(claim)
			if planned, ok := before[claim.Name]; ok {
				w.Expect(in.VMID).To(Equal(planned.VMID))
				w.Expect(in.Host).To(Equal(planned.Host))
				w.Expect(in.Network.Addresses()).To(Equal(planned.Network.Addresses()))
				w.Expect(in.Devices).To(Equal(planned.Devices))
				w.Expect(in.Machine).To(Equal(planned.Machine))
			}
			w.Expect(vmids).NotTo(HaveKey(in.VMID))
			vmids[in.VMID] = claim.Name
			for _, address := range in.Network.Addresses() {
				w.Expect(addresses).NotTo(HaveKey(address.String()))
				addresses[address.String()] = claim.Name
			}
		}
		w.Expect(w.VMs()).To(HaveLen(pending + 1))
	})
}
