// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"net/netip"
	"regexp"
	"strings"
)

// ModelVirtIO is the model of network interfaces with queues and a settable MTU.
const ModelVirtIO = "virtio"

// NIC is a network interface of a VM, "netN" in its config.
type NIC struct {
	Slot     string // net0
	Model    string // virtio, e1000...
	MAC      string
	Bridge   string
	VLAN     int // 0 = untagged
	Firewall bool
	MTU      int // 0 = default, 1 = the bridge's
	Queues   int
	Rate     string // limit in megabytes per second; empty = none
	Trunks   string // VLANs of the guest: 2;4-6

	properties Properties
}

var macPattern = regexp.MustCompile(`^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$`)

// ParseNIC parses the value of a netN option.
func ParseNIC(slot, value string) NIC {
	p := ParseProperties(value)
	n := NIC{
		Slot:       slot,
		Model:      p.Value("model"),
		MAC:        p.Value("macaddr"),
		Bridge:     p.Value("bridge"),
		VLAN:       parseNumber(p.Value("tag")),
		Firewall:   isTrue(p.Value("firewall")),
		MTU:        parseNumber(p.Value("mtu")),
		Queues:     parseNumber(p.Value("queues")),
		Rate:       p.Value("rate"),
		Trunks:     p.Value("trunks"),
		properties: p,
	}
	if model, ok := p.bare(); ok && n.Model == "" {
		n.Model = model
	}
	for _, property := range p {
		// Usually the model is the key and the MAC its value: virtio=BC:24:...
		if n.Model == "" && property.Key != "macaddr" && macPattern.MatchString(property.Value) {
			n.Model, n.MAC = property.Key, property.Value
		}
	}
	return n
}

// Encode returns the value of the netN option: the current fields, and all other
// properties as they were read. Proxmox generates a MAC for a NIC without one.
func (n NIC) Encode() string {
	p := n.properties.Without("model", "macaddr").withoutBare()
	for _, property := range n.properties {
		if property.Key != "macaddr" && macPattern.MatchString(property.Value) {
			p = p.Without(property.Key)
		}
	}
	model := n.Model
	if model == "" {
		model = ModelVirtIO
	}
	switch {
	case macPattern.MatchString(n.MAC):
		p = append(Properties{{Key: model, Value: n.MAC}}, p...)
	case n.MAC != "":
		p = append(Properties{{Value: model, Bare: true}, {Key: "macaddr", Value: n.MAC}}, p...)
	default:
		p = append(Properties{{Value: model, Bare: true}}, p...)
	}
	return p.withText("bridge", n.Bridge).withFlag("firewall", n.Firewall).
		withNumber("tag", n.VLAN).withNumber("mtu", n.MTU).withNumber("queues", n.Queues).
		withText("rate", n.Rate).withText("trunks", n.Trunks).Encode()
}

// Network are the network options of a VM or container.
type Network struct{ options map[string]string }

var (
	nicSlot      = regexp.MustCompile(`^net(\d{1,2})$`)
	ipconfigSlot = regexp.MustCompile(`^ipconfig(\d{1,2})$`)
)

// NICs returns the network interfaces sorted by slot.
func (n Network) NICs() []NIC {
	var nics []NIC
	for _, slot := range slots(n.options, nicSlot) {
		nics = append(nics, ParseNIC(slot, n.options[slot]))
	}
	return nics
}

// IPConfig returns the IP configuration of an interface ("net0").
func (n Network) IPConfig(nic string) IPConfig { return ParseIPConfig(n.options[IPConfigSlot(nic)]) }

// Addresses returns the addresses that the config assigns to the guest: ipconfigN
// of a VM, netN of a container. It omits subnets, from which the provider assigns
// an address to each clone of a template.
func (n Network) Addresses() []netip.Addr {
	var out []netip.Addr
	for option, value := range n.options {
		if !strings.Contains(value, "ip") || (!ipconfigSlot.MatchString(option) && !nicSlot.MatchString(option)) {
			continue
		}
		// A container's netN has the same keys as a VM's ipconfigN, a VM's netN none of them.
		config := ParseIPConfig(value)
		for _, text := range []string{config.Address4, config.Address6} {
			if prefix, err := netip.ParsePrefix(text); err == nil && !isSubnet(prefix) {
				out = append(out, prefix.Addr())
			}
		}
	}
	return out
}

// AgentEnabled reports whether the guest is configured to run the guest agent,
// which reports the guest's addresses.
func (n Network) AgentEnabled() bool {
	return isTrue(ParseProperties(n.options["agent"]).defaultValue("enabled"))
}
