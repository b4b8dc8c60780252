// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// networkConfig is cloud-init's network-config, version 1 or 2, optionally under the
// key "network".
type networkConfig struct {
	Version   int                 `yaml:"version"`
	Ethernets map[string]ethernet `yaml:"ethernets"` // version 2
	Config    []networkDevice     `yaml:"config"`    // version 1
	Network   *networkConfig      `yaml:"network"`
}

type ethernet struct {
	Match struct {
		MACAddress string `yaml:"macaddress"`
		Name       string `yaml:"name"`
	} `yaml:"match"`
	DHCP4     bool        `yaml:"dhcp4"`
	DHCP6     bool        `yaml:"dhcp6"`
	Addresses []yaml.Node `yaml:"addresses"`
}

type networkDevice struct {
	Type       string `yaml:"type"`
	Name       string `yaml:"name"`
	MACAddress string `yaml:"mac_address"`
	Subnets    []struct {
		Type    string `yaml:"type"`
		Address string `yaml:"address"`
		Netmask string `yaml:"netmask"`
	} `yaml:"subnets"`
}

// device is a configured network device of either version.
type device struct {
	mac, name string
	dhcp      bool
	static    []netip.Prefix
}

// address is an address on one of the guest's network cards.
type address struct {
	card int
	netip.Prefix
}

// configureNetwork returns the guest's addresses in the order of its network
// cards. Without a configuration, the first card uses DHCP, as with cloud-init.
func (g *guest) configureNetwork(config []byte) ([]address, error) {
	if len(bytes.TrimSpace(config)) == 0 {
		if len(g.macs) == 0 {
			return nil, errors.New("the VM has no network card")
		}
		return []address{{card: 0, Prefix: g.dhcp(g.macs[0])}}, nil
	}
	devices, err := parseNetworkConfig(config)
	if err != nil {
		return nil, err
	}
	return g.addressesOf(devices)
}

// addressesOf configures the network cards.
func (g *guest) addressesOf(devices []device) ([]address, error) {
	var addresses []address
	for i, mac := range g.macs {
		for _, d := range devices {
			if !d.matches(mac, i) {
				continue
			}
			for _, prefix := range d.static {
				addresses = append(addresses, address{card: i, Prefix: prefix})
			}
			if d.dhcp {
				addresses = append(addresses, address{card: i, Prefix: g.dhcp(mac)})
			}
			break
		}
	}
	if len(addresses) == 0 {
		return nil, fmt.Errorf("no configured device matches the network cards %v", g.macs)
	}
	return addresses, nil
}

func parseNetworkConfig(raw []byte) ([]device, error) {
	var config networkConfig
	if err := yaml.Unmarshal(raw, &config); err != nil {
		return nil, fmt.Errorf("network-config is not valid YAML: %w", err)
	}
	if config.Network != nil {
		config = *config.Network
	}
	switch config.Version {
	case 1:
		return devicesV1(config.Config)
	case 2:
		return devicesV2(config.Ethernets)
	default:
		return nil, fmt.Errorf("network-config has version %d, not 1 or 2", config.Version)
	}
}

func devicesV2(ethernets map[string]ethernet) ([]device, error) {
	devices := make([]device, 0, len(ethernets))
	for _, name := range slices.Sorted(maps.Keys(ethernets)) {
		e := ethernets[name]
		d := device{mac: e.Match.MACAddress, name: name, dhcp: e.DHCP4}
		if d.mac == "" && e.Match.Name != "" {
			d.name = e.Match.Name
		}
		for _, node := range e.Addresses {
			text := node.Value
			if node.Kind == yaml.MappingNode && len(node.Content) > 0 {
				text = node.Content[0].Value // an address with options is a mapping
			}
			prefix, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("device %s: address %q is invalid or has no prefix length", name, text)
			}
			d.static = append(d.static, prefix)
		}
		devices = append(devices, d)
	}
	return devices, nil
}

func devicesV1(configured []networkDevice) ([]device, error) {
	var devices []device
	for _, c := range configured {
		if c.Type != "physical" {
			continue
		}
		d := device{mac: c.MACAddress, name: c.Name}
		for _, subnet := range c.Subnets {
			switch subnet.Type {
			case "dhcp", "dhcp4":
				d.dhcp = true
			case "static", "static6":
				prefix, err := subnetPrefix(subnet.Address, subnet.Netmask)
				if err != nil {
					return nil, fmt.Errorf("device %s: address %q is invalid", c.Name, subnet.Address)
				}
				d.static = append(d.static, prefix)
			}
		}
		devices = append(devices, d)
	}
	return devices, nil
}

// subnetPrefix parses an address of version 1: with a prefix length, with a netmask, or
// with neither, which means a single host.
func subnetPrefix(text, netmask string) (netip.Prefix, error) {
	if strings.Contains(text, "/") {
		return netip.ParsePrefix(text)
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, err
	}
	ones, size := net.IPMask(net.ParseIP(netmask).To4()).Size()
	if size == 0 {
		ones = addr.BitLen()
	}
	return netip.PrefixFrom(addr, ones), nil
}

// deviceName matches the number in the names that Linux assigns to the network cards
// of a Proxmox VM: eth0, ens18 and enp6s18 are all net0.
var deviceName = regexp.MustCompile(`^(eth|ens|enp\d+s)(\d+)$`)

// firstSlot is the PCI slot of net0.
const firstSlot = 18

// matches reports whether the configuration matches this card: by MAC address if set,
// otherwise by name, which may be a pattern.
func (d device) matches(mac string, index int) bool {
	if d.mac != "" {
		return strings.EqualFold(d.mac, mac)
	}
	if parts := deviceName.FindStringSubmatch(d.name); parts != nil {
		number, err := strconv.Atoi(parts[2])
		if parts[1] != "eth" {
			number -= firstSlot
		}
		return err == nil && number == index
	}
	ok, err := path.Match(d.name, fmt.Sprintf("eth%d", index))
	return err == nil && ok
}
