// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// maxNICs is the number of netN options of a VM.
const maxNICs = 32

// NIC is a network interface of a class's VMs: that of the template with the settings of
// the class, or one that only the class defines.
type NIC struct {
	proxmox.NIC
	// Field is the element of the class that names the bridge; empty if it is the template's.
	Field string
	// IsNew is set if the template does not have the interface.
	IsNew bool
}

// NICs returns the network interfaces of a class's VMs in the order of their slots.
func NICs(class *v1alpha1.ProxmoxNodeClass, template proxmox.VMConfig) []NIC {
	var out []NIC
	for _, nic := range template.Network().NICs() {
		out = append(out, NIC{NIC: nic})
	}
	if class.Spec.Network == nil {
		return out
	}
	for n, in := range class.Spec.Network.Interfaces {
		at := slices.IndexFunc(out, func(nic NIC) bool { return nic.Slot == in.Name })
		if at < 0 {
			if in.Bridge == "" {
				continue // NewLayout reports it
			}
			at = len(out)
			out = append(out, NIC{NIC: proxmox.NIC{Slot: in.Name}, IsNew: true})
		}
		out[at].NIC = WithDevice(out[at].NIC, in.InterfaceDevice)
		if in.Bridge != "" {
			out[at].Field = fmt.Sprintf("spec.network.interfaces[%d]", n)
		}
	}
	slices.SortFunc(out, func(a, b NIC) int { return compareSlots(a.Slot, b.Slot) })
	return out
}

// compareSlots orders interfaces by their number: net2 is before net10.
func compareSlots(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) }

// WithDevice returns an interface with the settings of a class. Settings that are not set,
// and properties that a class cannot set, stay.
func WithDevice(nic proxmox.NIC, d v1alpha1.InterfaceDevice) proxmox.NIC {
	nic.Bridge = cmp.Or(d.Bridge, nic.Bridge)
	nic.Model = cmp.Or(d.Model, nic.Model, proxmox.ModelVirtIO)
	if d.Model != "" && d.Model != proxmox.ModelVirtIO {
		nic.MTU, nic.Queues = 0, 0 // Proxmox ignores them with other models
	}
	if d.VLAN != nil {
		nic.VLAN = int(*d.VLAN)
	}
	if len(d.Trunks) > 0 {
		nic.Trunks = strings.Join(d.Trunks, ";")
	}
	if d.RateLimit != "" {
		nic.Rate = d.RateLimit
		if rate, err := strconv.ParseFloat(nic.Rate, 64); err == nil && rate == 0 {
			nic.Rate = ""
		}
	}
	if d.MTU != nil {
		nic.MTU = int(*d.MTU)
	}
	if d.Queues != nil {
		nic.Queues = int(*d.Queues)
	}
	if d.Firewall != nil {
		nic.Firewall = *d.Firewall
	}
	return nic
}

// Devices returns an assignment with the devices of a class's interfaces and no addresses.
func Devices(class *v1alpha1.ProxmoxNodeClass) Assignment {
	out := Assignment{}
	if class.Spec.Network != nil {
		out.Interfaces = map[string]InterfaceAddresses{}
		for _, in := range class.Spec.Network.Interfaces {
			out.Interfaces[in.Name] = InterfaceAddresses{Device: in.InterfaceDevice}
		}
	}
	return out
}

// invalidDevices returns an error for each setting of the class that the interface cannot
// have.
func invalidDevices(class *v1alpha1.ProxmoxNodeClass, nics []NIC) []error {
	if class.Spec.Network == nil {
		return nil
	}
	var errs []error
	for n, in := range class.Spec.Network.Interfaces {
		field := fmt.Sprintf("spec.network.interfaces[%d]", n)
		at := slices.IndexFunc(nics, func(nic NIC) bool { return nic.Slot == in.Name })
		if at < 0 {
			continue // unknownInterfaces reports it
		}
		if number, err := strconv.Atoi(strings.TrimPrefix(in.Name, "net")); err != nil || number >= maxNICs || in.Name != fmt.Sprintf("net%d", number) {
			errs = append(errs, fmt.Errorf("%s.name %s is not an interface of Proxmox: want net0 to net%d", field, in.Name, maxNICs-1))
		}
		if model := nics[at].Model; model != proxmox.ModelVirtIO && (in.MTU != nil || in.Queues != nil) {
			errs = append(errs, fmt.Errorf("%s: mtu and queues need the model virtio, but %s of the template has the model %s: remove them, or set model to virtio",
				field, in.Name, model))
		}
		for t, trunk := range in.Trunks {
			if _, _, err := parseTrunk(trunk); err != nil {
				errs = append(errs, fmt.Errorf("%s.trunks[%d] %w", field, t, err))
			}
		}
		grouped := func(g v1alpha1.SecurityGroup) bool { return g.Interface == in.Name }
		if at := slices.IndexFunc(class.Spec.SecurityGroups, grouped); at >= 0 && in.Firewall != nil && !*in.Firewall {
			errs = append(errs, fmt.Errorf("%s.firewall is false, but spec.securityGroups[%d] is on %s: remove one of them", field, at, in.Name))
		}
	}
	return errs
}

const maxVLAN = 4094

// parseTrunk parses a VLAN or a range of VLANs.
func parseTrunk(text string) (first, last int, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if !isRange {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || first < 1 || last > maxVLAN || first > last {
		return 0, 0, fmt.Errorf("%q is not a VLAN: want 1 to %d, or a range such as 10-19", text, maxVLAN)
	}
	return first, last, nil
}

// TrunkVLANs returns the VLANs of an interface's trunks.
func TrunkVLANs(trunks string) []int {
	var out []int
	for _, text := range splitList(trunks) {
		first, last, err := parseTrunk(text)
		for vlan := first; err == nil && vlan <= last; vlan++ {
			out = append(out, vlan)
		}
	}
	return out
}
