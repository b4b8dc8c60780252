// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"bytes"
	"slices"
)

// UnusedSetting is a setting of an interface that the templates do not pass to the guest.
type UnusedSetting struct {
	// Interface is the name of the interface, for example eth0.
	Interface string
	// Field is the field of the ProxmoxNodeClass below the interface.
	Field string
	// File is the file that the guest reads it from.
	File string
}

// interfaceSetting is a setting of an interface that not all formats can express.
type interfaceSetting struct {
	field string
	// clear returns the interface without the setting, and whether it had it.
	clear func(Interface) (Interface, bool)
}

// interfaceSettings are the settings that UnusedSettings checks. Metric and default route
// are checked for each address family, because a format may support one of them only.
func interfaceSettings() []interfaceSetting {
	return []interfaceSetting{
		{"routes", func(i Interface) (Interface, bool) { had := len(i.Routes) > 0; i.Routes = nil; return i, had }},
		{"routes[].metric", func(i Interface) (Interface, bool) { return withoutRoutes(i, func(r *Route) *int { return &r.Metric }) }},
		{"routes[].table", func(i Interface) (Interface, bool) { return withoutRoutes(i, func(r *Route) *int { return &r.Table }) }},
		{"policyRoutes", func(i Interface) (Interface, bool) {
			had := len(i.PolicyRoutes) > 0
			i.PolicyRoutes = nil
			return i, had
		}},
		{"metric", func(i Interface) (Interface, bool) { had := i.Metric4 != 0; i.Metric4 = 0; return i, had }},
		{"metric, for IPv6,", func(i Interface) (Interface, bool) { had := i.Metric6 != 0; i.Metric6 = 0; return i, had }},
		{"defaultRoute", func(i Interface) (Interface, bool) {
			had := i.NoDefaultRoute4 && i.DHCPv4
			i.NoDefaultRoute4 = false
			return i, had
		}},
		{"defaultRoute, for IPv6,", func(i Interface) (Interface, bool) {
			had := i.NoDefaultRoute6 && (i.DHCPv6 || i.SLAAC)
			i.NoDefaultRoute6 = false
			return i, had
		}},
		{"dnsServers", func(i Interface) (Interface, bool) { had := len(i.NameServers) > 0; i.NameServers = nil; return i, had }},
		{"searchDomains", func(i Interface) (Interface, bool) {
			had := len(i.SearchDomains) > 0
			i.SearchDomains = nil
			return i, had
		}},
	}
}

// withoutRoutes sets a field of all routes to zero.
func withoutRoutes(i Interface, field func(*Route) *int) (Interface, bool) {
	had := false
	i.Routes = slices.Clone(i.Routes)
	for n := range i.Routes {
		value := field(&i.Routes[n])
		had, *value = had || *value != 0, 0
	}
	return i, had
}

// UnusedSettings returns the settings of interfaces that make no difference in the file
// that the guest reads its network from: the templates do not use them, or the format
// cannot express them. The guest would silently lack them. files are what render returns for
// the data.
func UnusedSettings(render func(Data) (Files, error), data Data, files Files) ([]UnusedSetting, error) {
	name, content := NetworkConfigFile, func(f Files) []byte { return f.NetworkConfig }
	if format := FormatOf(files.UserData); format == FormatIgnition || format == FormatTalos {
		name, content = UserDataFile, func(f Files) []byte { return f.UserData }
	}
	var unused []UnusedSetting
	for n, nic := range data.Network.Interfaces {
		for _, setting := range interfaceSettings() {
			cleared, had := setting.clear(nic)
			if !had {
				continue
			}
			changed := data
			changed.Network.Interfaces = slices.Clone(data.Network.Interfaces)
			changed.Network.Interfaces[n] = cleared
			rendered, err := render(changed)
			if err != nil {
				return nil, err
			}
			if bytes.Equal(content(rendered), content(files)) {
				unused = append(unused, UnusedSetting{Interface: nic.Name, Field: setting.field, File: name})
			}
		}
	}
	return unused, nil
}
