// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"fmt"
	"net/netip"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// NodeName returns the name of a Claim's VM and Node: that of its machine, else that of
// the Claim.
func NodeName(claim *karpv1.NodeClaim, in Intent) string { return cmp.Or(in.Machine, claim.Name) }

// ExpectedNodeName returns the name that the Node of a Claim should have.
func ExpectedNodeName(claim *karpv1.NodeClaim) string {
	return cmp.Or(ReadHolds(claim).Machine, claim.Name)
}

// HeldMachines returns the machines of this Kubernetes cluster that a VM or a Reservation
// holds, each with a description of the holder. A VM on a Host that was removed from its
// Cluster holds none.
func HeldMachines(view inventory.View, kubeCluster string) map[string]string {
	held := map[string]string{}
	for _, snapshot := range view.Snapshots {
		for _, guest := range snapshot.Guests {
			if guest.Config == nil || guest.Template {
				continue
			}
			mark, ok := ownership.Read(guest.Config.Description())
			if _, member := snapshot.Hosts[guest.Host]; !ok || !member || mark.Machine == "" || mark.KubeCluster != kubeCluster || mark.VMID != guest.VMID {
				continue
			}
			held[mark.Machine] = fmt.Sprintf("VM %d on host %s of NodeClaim %s", guest.VMID, guest.Host, mark.Name)
		}
	}
	for uid, r := range view.Reservations {
		if _, known := held[r.Machine]; r.Machine != "" && !known {
			held[r.Machine] = "the NodeClaim with the UID " + uid
		}
	}
	return held
}

// MachineDrift describes how the VM of an intent differs from its machine in the class;
// empty if it does not.
func MachineDrift(in Intent, class *v1alpha1.ProxmoxNodeClass) string {
	if in.Parked {
		return "" // it gets its machine when there is capacity
	}
	if in.Machine == "" {
		if len(class.Spec.Machines) > 0 {
			return fmt.Sprintf("the VM is no machine of ProxmoxNodeClass %s, which has machines now", class.Name)
		}
		return ""
	}
	machine, ok := class.Spec.FindMachine(in.Machine)
	if !ok {
		return fmt.Sprintf("ProxmoxNodeClass %s has no machine %s any more", class.Name, in.Machine)
	}
	if !machine.AllowsHost(in.Region, in.Host) {
		return fmt.Sprintf("machine %s was moved from host %s of region %s to host %s", machine.Name, in.Host, in.Region, machine.Zone)
	}
	for _, want := range machine.Addresses {
		found := in.Network.Interfaces[want.Interface]
		for _, family := range []struct {
			want  string
			found netip.Prefix
		}{{want.Address4, found.Address4}, {want.Address6, found.Address6}} {
			// The class is not ready while an address does not parse.
			if address, err := netip.ParseAddr(family.want); err == nil && address != family.found.Addr() {
				return fmt.Sprintf("the address of interface %s of machine %s changed to %s", want.Interface, machine.Name, address)
			}
		}
	}
	return ""
}
