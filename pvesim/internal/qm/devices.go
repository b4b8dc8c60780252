// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qm

import (
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Drive is a parsed drive option.
type Drive struct {
	Key  string
	File string
	Opts map[string]string
}

// ParseDrive parses the property string of a drive. It returns false if the string contains no file.
func ParseDrive(key, v string) (d Drive, ok bool) {
	d = Drive{Key: key, Opts: map[string]string{}}
	for _, part := range strings.Split(v, ",") {
		k, val, hasKey := strings.Cut(part, "=")
		switch {
		case part == "":
		case !hasKey && d.File == "":
			d.File = part
		case k == "file" || k == "volume":
			d.File = val
		case hasKey:
			d.Opts[k] = val
		}
	}
	if d.Opts["media"] == "" && (d.File == "none" || d.File == "cdrom") {
		d.Opts["media"] = "cdrom"
	}
	return d, d.File != ""
}

// String prints the drive as Proxmox stores it: the file first, the options sorted.
func (d Drive) String() string {
	return strings.Join(append([]string{d.File}, formatFields(d.Opts)...), ",")
}

// IsCDROM reports whether the drive is a CD drive, which includes cloud-init drives.
func (d Drive) IsCDROM() bool { return d.Opts["media"] == "cdrom" }

// IsCloudInit reports whether the drive is a cloud-init drive that Proxmox generates.
func (d Drive) IsCloudInit() bool {
	_, name, ok := strings.Cut(d.File, ":")
	return ok && (name == "cloudinit" || strings.HasSuffix(strings.TrimSuffix(strings.TrimSuffix(name, ".qcow2"), ".raw"), "-cloudinit"))
}

// HasVolume reports whether the drive refers to a volume on a storage.
func (d Drive) HasVolume() bool {
	return d.File != "none" && d.File != "cdrom" && !strings.HasPrefix(d.File, "/") && strings.Contains(d.File, ":")
}

// Storage returns the storage of the volume.
func (d Drive) Storage() string {
	id, _, _ := strings.Cut(d.File, ":")
	return id
}

// VolumeDrives returns the drives of a config that refer to a volume, in the order of Proxmox.
func VolumeDrives(options map[string]string) []Drive {
	var out []Drive
	for _, key := range DriveKeys(options) {
		if d, ok := ParseDrive(key, options[key]); ok && d.HasVolume() {
			out = append(out, d)
		}
	}
	return out
}

// Net is a parsed network device.
type Net struct {
	Model, MAC string
	Opts       map[string]string
}

// VLANs returns the tag and the trunks of a NIC.
func (n Net) VLANs() []int {
	var out []int
	for _, part := range strings.Split(n.Opts["tag"]+";"+n.Opts["trunks"], ";") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		for vlan := first; err1 == nil && err2 == nil && vlan <= min(last, 4094); vlan++ {
			out = append(out, vlan)
		}
	}
	return out
}

// ParseNet parses the property string of a network device.
func ParseNet(v string) Net {
	n := Net{Opts: map[string]string{}}
	for i, part := range strings.Split(v, ",") {
		k, val, hasKey := strings.Cut(part, "=")
		switch {
		case k == "model":
			n.Model = val
		case k == "macaddr":
			n.MAC = strings.ToUpper(val)
		case !hasKey && i == 0:
			n.Model = part
		case hasKey && strings.Count(val, ":") == 5:
			n.Model, n.MAC = k, strings.ToUpper(val)
		case hasKey:
			n.Opts[k] = val
		}
	}
	return n
}

// String returns the device as Proxmox stores it: first model and address, then the options in order.
func (n Net) String() string {
	return strings.Join(append([]string{n.Model + "=" + n.MAC}, formatFields(n.Opts)...), ",")
}

// RandomMAC returns a random address with the prefix of the cluster.
func RandomMAC(prefix string) string {
	if prefix == "" {
		prefix = "BC:24:11"
	}
	var raw [6]byte
	_, _ = rand.Read(raw[:]) // never fails
	parts := strings.Split(strings.TrimSuffix(prefix, ":"), ":")
	for i := len(parts); i < 6; i++ {
		parts = append(parts, fmt.Sprintf("%02X", raw[i]))
	}
	return strings.ToUpper(strings.Join(parts, ":"))
}

// WithNewUUID returns an smbios1 property string with a new UUID and all other fields.
func WithNewUUID(smbios1 string) string {
	fields := ParseFields(smbios1)
	fields["uuid"] = uuid.NewString()
	return strings.Join(formatFields(fields), ",")
}

// ParseFields parses a property string in which each value has a key.
func ParseFields(v string) map[string]string {
	out := map[string]string{}
	for _, part := range strings.Split(v, ",") {
		if k, val, ok := strings.Cut(part, "="); ok {
			out[k] = val
		}
	}
	return out
}

// formatFields returns the parts of a property string with its keys in order.
func formatFields(fields map[string]string) []string {
	parts := make([]string, 0, len(fields))
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		parts = append(parts, k+"="+fields[k])
	}
	return parts
}

// maxSize is above the size of any disk.
const maxSize = 1 << 62

var units = map[byte]int64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}

// ParseSize parses a disk size such as "64M" or "1.5G". Sizes without a unit are in bytes.
func ParseSize(v string) (int64, bool) {
	if v == "" {
		return 0, false
	}
	factor := int64(1)
	if f, ok := units[v[len(v)-1]]; ok {
		factor, v = f, v[:len(v)-1]
	}
	n, err := strconv.ParseFloat(v, 64)
	bytes := n * float64(factor)
	// The negated comparison would accept NaN.
	if inside := bytes >= 0 && bytes <= maxSize; err != nil || !inside {
		return 0, false
	}
	return int64(bytes), true
}

// FormatSize returns a size with the largest unit that divides it.
func FormatSize(bytes int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "T"}, {1 << 30, "G"}, {1 << 20, "M"}, {1 << 10, "K"}} {
		if bytes >= u.size && bytes%u.size == 0 {
			return strconv.FormatInt(bytes/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(bytes, 10)
}

// BootOrder returns the devices of a boot option in order. Legacy forms have none.
func BootOrder(boot string) []string {
	for _, part := range strings.Split(boot, ",") {
		if list, ok := strings.CutPrefix(part, "order="); ok {
			return strings.FieldsFunc(list, func(r rune) bool { return r == ';' })
		}
	}
	return nil
}

// BootDisk returns the option of the disk that a VM boots from, or "".
func BootDisk(options map[string]string) string {
	for _, key := range append(BootOrder(options["boot"]), DriveKeys(options)...) {
		if d, ok := ParseDrive(key, options[key]); ok && IsDriveKey(key) && !d.IsCDROM() {
			return key
		}
	}
	return ""
}

// DefaultBootOrder returns the boot option of a VM that was created without one: the first disk, the first CD drive and
// the first NIC.
func DefaultBootOrder(options map[string]string) string {
	var disk, cd string
	for _, bus := range []string{"ide", "sata", "scsi", "virtio"} {
		for i := range 31 {
			key := bus + strconv.Itoa(i)
			v, ok := options[key]
			if !ok {
				continue
			}
			d, _ := ParseDrive(key, v)
			switch {
			case d.IsCloudInit():
			case d.IsCDROM() && cd == "":
				cd = key
			case !d.IsCDROM() && (disk == "" || rank(key) < rank(disk)):
				disk = key
			}
		}
	}
	var order []string
	for _, k := range []string{disk, cd} {
		if k != "" {
			order = append(order, k)
		}
	}
	if nets := NetKeys(options); len(nets) > 0 {
		order = append(order, nets[0])
	}
	return "order=" + strings.Join(order, ";")
}

// rank orders buses as Proxmox does to find the boot disk.
func rank(key string) int {
	for i, bus := range []string{"ide", "scsi", "virtio", "sata"} {
		if strings.HasPrefix(key, bus) {
			return i
		}
	}
	return 9
}
