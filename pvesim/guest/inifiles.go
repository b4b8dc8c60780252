// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// setting is one line of an INI file, the format of systemd and NetworkManager.
type setting struct{ section, key, value string }

func settingsIn(content []byte) []setting {
	var (
		out     []setting
		section string
	)
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		switch key, value, found := strings.Cut(line, "="); {
		case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";"):
		case strings.HasPrefix(line, "["):
			section = strings.Trim(line, "[]")
		case found:
			out = append(out, setting{section, strings.TrimSpace(key), strings.TrimSpace(value)})
		}
	}
	return out
}

// networkdDevices returns the devices of systemd-networkd's configuration.
func networkdDevices(disk pvesim.GuestDisk) []device {
	var devices []device
	for _, name := range filesIn(disk, "/etc/systemd/network", ".network") {
		content, _ := disk.Read(name)
		var d device
		for _, s := range settingsIn(content) {
			switch s.section + "." + s.key {
			case "Match.MACAddress":
				d.mac = s.value
			case "Match.Name":
				d.name = s.value
			case "Network.DHCP":
				d.dhcp = s.value == "yes" || s.value == "ipv4"
			case "Network.Address", "Address.Address":
				d.static = appendPrefix(d.static, s.value)
			}
		}
		devices = append(devices, d)
	}
	return devices
}

// keyfileAddress matches the key of address1=10.0.0.2/24. In the older form, the value
// also contains a gateway.
var keyfileAddress = regexp.MustCompile(`^ipv[46]\.address\d*$`)

// networkManagerDevices returns the devices of NetworkManager's configuration.
func networkManagerDevices(disk pvesim.GuestDisk) []device {
	var devices []device
	for _, name := range filesIn(disk, "/etc/NetworkManager/system-connections", ".nmconnection") {
		content, _ := disk.Read(name)
		var d device
		for _, s := range settingsIn(content) {
			switch key := s.section + "." + s.key; {
			case key == "ethernet.mac-address":
				d.mac = s.value
			case key == "connection.interface-name":
				d.name = s.value
			case key == "ipv4.method":
				d.dhcp = s.value == "auto"
			case keyfileAddress.MatchString(key):
				address, _, _ := strings.Cut(s.value, ",")
				d.static = appendPrefix(d.static, address)
			}
		}
		devices = append(devices, d)
	}
	return devices
}

// appendPrefix skips invalid addresses; both programs skip them with a warning.
func appendPrefix(list []netip.Prefix, text string) []netip.Prefix {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return append(list, prefix)
	}
	return list
}
