// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"regexp"
	"strconv"
	"strings"
)

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

	properties Properties
}

var macPattern = regexp.MustCompile(`^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$`)

// ParseNIC reads the value of a netN option.
func ParseNIC(slot, value string) NIC {
	p := ParseProperties(value)
	n := NIC{
		Slot:       slot,
		Model:      p.Value("model"),
		MAC:        p.Value("macaddr"),
		Bridge:     p.Value("bridge"),
		VLAN:       number(p.Value("tag")),
		Firewall:   isTrue(p.Value("firewall")),
		MTU:        number(p.Value("mtu")),
		Queues:     number(p.Value("queues")),
		properties: p,
	}
	if model, ok := p.bare(); ok && n.Model == "" {
		n.Model = model
	}
	for _, property := range p {
		// Mostly the model is the key and the MAC its value: virtio=BC:24:...
		if n.Model == "" && property.Key != "macaddr" && macPattern.MatchString(property.Value) {
			n.Model, n.MAC = property.Key, property.Value
		}
	}
	return n
}

// Encode writes the netN option: the fields as they are now, everything else
// as it was read. A NIC without a MAC gets a new one from Proxmox.
func (n NIC) Encode() string {
	p := withoutBare(n.properties.Without("model", "macaddr"))
	for _, property := range n.properties {
		if property.Key != "macaddr" && macPattern.MatchString(property.Value) {
			p = p.Without(property.Key)
		}
	}
	model := n.Model
	if model == "" {
		model = "virtio"
	}
	switch {
	case macPattern.MatchString(n.MAC):
		p = append(Properties{{Key: model, Value: n.MAC}}, p...)
	case n.MAC != "":
		p = append(Properties{{Value: model, Bare: true}, {Key: "macaddr", Value: n.MAC}}, p...)
	default:
		p = append(Properties{{Value: model, Bare: true}}, p...)
	}
	p = withText(p, "bridge", n.Bridge)
	p = withFlag(p, "firewall", n.Firewall)
	p = withNumber(p, "tag", n.VLAN)
	p = withNumber(p, "mtu", n.MTU)
	p = withNumber(p, "queues", n.Queues)
	return p.Encode()
}

// Drive is a disk or CD drive of a VM.
type Drive struct {
	Slot        string // scsi0
	VolumeID    string // local-lvm:vm-100-disk-0; "none" or "cdrom" for an empty drive
	Storage     string // local-lvm; empty where VolumeID is no volume
	IsCDROM     bool
	IsCloudInit bool
	SizeBytes   int64 // as the config says; 0 where it does not
	// Properties are the drive's other options, in order: size, discard, ssd...
	Properties Properties
}

var cloudInitVolume = regexp.MustCompile(`(^|[:/])vm-\d+-cloudinit(\.[a-z0-9]+)?$|:cloudinit$`)

// ParseDrive reads the value of a drive option.
func ParseDrive(slot, value string) Drive {
	p := ParseProperties(value)
	volume, ok := p.bare()
	if !ok {
		volume = p.Value("file")
	}
	d := Drive{
		Slot:        slot,
		VolumeID:    volume,
		IsCDROM:     p.Value("media") == "cdrom" || volume == "none" || volume == "cdrom",
		IsCloudInit: cloudInitVolume.MatchString(volume),
		SizeBytes:   parseSize(p.Value("size")),
		Properties:  withoutBare(p.Without("file")),
	}
	if storage, _, ok := strings.Cut(volume, ":"); ok {
		d.Storage = storage
	}
	return d
}

// Encode writes the drive option. The volume must be repeated on each write;
// a size in it is ignored by Proxmox: grow with ResizeDisk.
func (d Drive) Encode() string {
	return append(Properties{{Value: d.VolumeID, Bare: true}}, d.Properties...).Encode()
}

func withoutBare(p Properties) Properties {
	kept := make(Properties, 0, len(p))
	for _, property := range p {
		if !property.Bare {
			kept = append(kept, property)
		}
	}
	return kept
}

func withText(p Properties, key, value string) Properties {
	if value == "" {
		return p.Without(key)
	}
	return p.With(key, value)
}

func withNumber(p Properties, key string, value int) Properties {
	if value == 0 {
		return p.Without(key)
	}
	return p.With(key, strconv.Itoa(value))
}

// withFlag keeps an explicit "off" that was read, and adds none.
func withFlag(p Properties, key string, on bool) Properties {
	if on {
		return p.With(key, "1")
	}
	if _, given := p.Get(key); given {
		return p.With(key, "0")
	}
	return p
}

// number reads an integer property; Proxmox checked it, so what is no number
// counts as absent.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// isTrue reads a boolean as Proxmox writes it; its own parser also takes words.
func isTrue(s string) bool {
	switch strings.ToLower(s) {
	case "1", "on", "yes", "true":
		return true
	}
	return false
}

var sizeUnits = map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}

// parseSize reads a size as in "size=3584M"; 0 where it is none.
func parseSize(s string) int64 {
	if s == "" {
		return 0
	}
	unit, digits := int64(1), s
	if u, ok := sizeUnits[s[len(s)-1]]; ok {
		unit, digits = u, s[:len(s)-1]
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || n < 0 || n*float64(unit) > 1<<62 {
		return 0
	}
	return int64(n * float64(unit))
}
