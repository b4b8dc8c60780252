// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"net/netip"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// guestNetwork is the guest's network as boot data has it, in the order of the slots.
func guestNetwork(in Intent, bridges func(name string) proxmox.Bridge) bootdata.Network {
	out := bootdata.Network{
		Interfaces:  make([]bootdata.Interface, 0, len(in.MACs)),
		NameServers: in.Network.DNS, SearchDomains: in.Network.Search,
	}
	for _, slot := range sortedSlots(in.MACs) {
		given, known := in.Network.Interfaces[slot]
		if known && given.IPConfig() == (proxmox.IPConfig{}) {
			continue // asked to be left alone
		}
		// One that nothing is known about gets DHCP, by bootdata's own rule.
		nic := bootdata.Interface{
			Name: "eth" + strings.TrimPrefix(slot, "net"), MacAddr: in.MACs[slot], MTU: given.MTU,
			DHCPv4: given.DHCP4, DHCPv6: given.DHCP6, SLAAC: given.SLAAC,
			Address4: prefixes(given.Address4), Gateway4: text(given.Gateway4),
			Address6: prefixes(given.Address6), Gateway6: text(given.Gateway6),
			OnLink4: onLink(given.Address4, given.Gateway4), OnLink6: onLink(given.Address6, given.Gateway6),
		}
		if bridges != nil {
			bridge := bridges(given.Bridge)
			nic.NodeAddress4, nic.NodeGateway4 = prefix(bridge.CIDR4), text(bridge.Gateway4)
			nic.NodeAddress6, nic.NodeGateway6 = prefix(bridge.CIDR6), text(bridge.Gateway6)
		}
		out.Interfaces = append(out.Interfaces, nic)
	}
	return out
}

// onLink tells whether a gateway is outside the subnet, and not link-local: those are
// on the link by definition.
func onLink(p netip.Prefix, gateway netip.Addr) bool {
	return gateway.IsValid() && !p.Contains(gateway) && !gateway.IsLinkLocalUnicast()
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func prefix(p netip.Prefix) string {
	if !p.IsValid() {
		return ""
	}
	return p.String()
}

func prefixes(p netip.Prefix) []string {
	if !p.IsValid() {
		return nil
	}
	return []string{p.String()}
}

// sample is a Claim as if its VM had been planned, so that templates are tried out with
// the interfaces and addresses that they will meet; nil while no Template is known.
func (p *Provider) sample(class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	view := p.Inventory.View()
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil {
			continue
		}
		template, ok := view.Guest(zone.Region, zone.VMID)
		if !ok || template.Config == nil {
			continue
		}
		layout, err := network.NewLayout(class, *template.Config)
		if err != nil {
			continue
		}
		claim := sampleClaim(class)
		in := Intent{
			Region: zone.Region, Host: zone.Host, VMID: v1alpha1.MinVMID, InstanceType: "sample", Cores: 1, MemoryMiB: 1024,
			MACs: map[string]string{},
		}
		for _, i := range layout.Interfaces {
			in.MACs[i.Slot] = DeriveMAC(view.Snapshots[zone.Region].Options.MACPrefix, string(claim.UID), i.Slot, func(string) bool { return false })
		}
		// That a pool is empty is no fault of the templates.
		in.Network, _ = layout.Assign(network.Request{Region: zone.Region, Host: zone.Host, Key: string(claim.UID)})
		claim.Annotations = map[string]string{v1alpha1.AnnotationLaunchIntent: in.Encode()}
		return claim
	}
	return nil
}

// sampleNetwork is what an imaginary VM gets, as far as the class alone tells.
func sampleNetwork(class *v1alpha1.ProxmoxNodeClass) (map[string]string, network.Assignment) {
	template := proxmox.VMConfig{Options: map[string]string{"net0": "virtio"}}
	if class.Spec.Network != nil {
		for _, i := range class.Spec.Network.Interfaces {
			template.Options[i.Name] = "virtio"
		}
	}
	for _, group := range class.Spec.SecurityGroups {
		template.Options[group.Interface] = "virtio"
	}
	macs := map[string]string{}
	for n, nic := range template.Network().NICs() {
		macs[nic.Slot] = fmt.Sprintf("BC:24:11:00:00:%02X", n)
	}
	layout, err := network.NewLayout(class, template)
	if err != nil {
		return macs, network.Assignment{} // the class's status tells
	}
	given, _ := layout.Assign(network.Request{Key: class.Name}) // an empty world has no empty pools
	return macs, given
}
