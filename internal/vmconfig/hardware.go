// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// setOptions writes the options of spec.hardware that do not depend on other ones.
// Properties of the Template that the class does not set are kept.
func (b *builder) setOptions() {
	h := b.want.Hardware
	for option, value := range map[string]*int32{"cpulimit": h.CPULimit, "cpuunits": h.CPUUnits} {
		if value != nil {
			b.set[option] = strconv.Itoa(int(*value))
		}
	}
	if h.Balloon != nil {
		b.set["balloon"] = strconv.Itoa(min(int(*h.Balloon), b.want.MemoryMiB))
	}
	if h.KSM != nil {
		b.set["allow-ksm"] = proxmox.EncodeBool(*h.KSM)
	}
	if len(h.Hotplug) > 0 {
		b.set["hotplug"] = strings.Join(h.Hotplug, ",")
		if h.Hotplug[0] == "none" {
			b.set["hotplug"] = "0"
		}
	}
	if h.Watchdog != nil {
		b.set["watchdog"] = "model=" + cmp.Or(h.Watchdog.Model, "i6300esb") + ",action=" + cmp.Or(h.Watchdog.Action, "reset")
	}
	if h.RNG != nil {
		b.set["rng0"] = encodeRNG(*h.RNG)
	}
	if h.Agent != nil {
		b.set["agent"] = AgentProperties(proxmox.ParseProperties(b.clone.Options["agent"]), *h.Agent).Encode()
	}
	if h.Startup != nil {
		b.set["startup"] = encodeStartup(proxmox.ParseProperties(b.clone.Options["startup"]), *h.Startup)
	}
}

// setBuses writes the machine type and the SCSI controller. The slots of devices and
// drives depend on them, so the rest of the change sees a clone that has them already.
func (b *builder) setBuses() {
	buses := map[string]string{}
	if machine := b.want.Hardware.Machine; machine != "" {
		buses["machine"] = withDefaultProperty(proxmox.ParseProperties(b.clone.Options["machine"]), "type", machine).Encode()
	}
	if controller := b.want.Hardware.SCSIController; controller != "" {
		buses["scsihw"] = controller
	}
	if len(buses) == 0 {
		return
	}
	maps.Copy(b.set, buses)
	options := maps.Clone(b.clone.Options)
	maps.Copy(options, buses)
	b.clone.Options = options
}

// withDefaultProperty returns properties in which the one whose key is optional has this
// value.
func withDefaultProperty(p proxmox.Properties, key, value string) proxmox.Properties {
	out := proxmox.Properties{{Key: key, Value: value}}
	for _, property := range p.Without(key) {
		if !property.Bare {
			out = append(out, property)
		}
	}
	return out
}

func encodeRNG(r v1alpha1.RNG) string {
	p := proxmox.Properties{{Key: "source", Value: "/dev/" + cmp.Or(r.Source, "urandom")}}
	p = withInt(p, "max_bytes", r.MaxBytes)
	return withInt(p, "period", r.Period).Encode()
}

// encodeStartup keeps the Template's properties that the class does not set.
func encodeStartup(inherited proxmox.Properties, s v1alpha1.StartupOrder) string {
	p := inherited
	if s.Order != nil {
		p = withDefaultProperty(p, "order", strconv.Itoa(int(*s.Order)))
	}
	p = withInt(p, "up", s.UpDelay)
	return withInt(p, "down", s.DownDelay).Encode()
}

// AgentProperties returns the option agent: inherited properties, changed to those of the
// spec.
func AgentProperties(inherited proxmox.Properties, a v1alpha1.Agent) proxmox.Properties {
	p := withDefaultProperty(inherited, "enabled", proxmox.EncodeBool(a.Enabled))
	if _, set := p.Get("type"); set || a.Type == "isa" {
		p = p.With("type", cmp.Or(a.Type, "virtio"))
	}
	if a.FSFreezeOnBackup != nil {
		// PVE 9.1 renamed the property. It still accepts this name, but not both.
		p = withBool(p.Without("freeze-fs", "guest-fsfreeze"), "freeze-fs-on-backup", a.FSFreezeOnBackup)
	}
	return withBool(p, "fstrim_cloned_disks", a.FSTrimClonedDisks)
}

// PCIProperties returns the option hostpciN: inherited properties, changed to those of the
// spec.
func PCIProperties(inherited proxmox.Properties, d v1alpha1.PCIDevice) proxmox.Properties {
	p := inherited.With("mapping", d.Mapping)
	if d.MDev != "" {
		p = p.With("mdev", d.MDev)
	}
	return withBool(withBool(p, "pcie", d.PCIe), "x-vga", d.XVGA)
}

func withBool(p proxmox.Properties, key string, value *bool) proxmox.Properties {
	if value == nil {
		return p
	}
	return p.With(key, proxmox.EncodeBool(*value))
}

func withInt(p proxmox.Properties, key string, value *int32) proxmox.Properties {
	if value == nil {
		return p
	}
	return p.With(key, strconv.Itoa(int(*value)))
}

// addTPM adds a TPM unless the clone has one: its version cannot be changed.
func (b *builder) addTPM(disk proxmox.Drive) error {
	tpm := b.want.Hardware.TPM
	if tpm == nil {
		return nil
	}
	version := cmp.Or(tpm.Version, "v2.0")
	value, exists := b.clone.Options["tpmstate0"]
	if !exists {
		// Proxmox ignores the size.
		b.set["tpmstate0"] = cmp.Or(tpm.Storage, disk.Storage) + ":1,version=" + version
		return nil
	}
	if found := cmp.Or(proxmox.ParseProperties(value).Value("version"), "v1.2"); found != version {
		return fmt.Errorf("the template has a TPM of version %s, which cannot be changed, and spec.hardware.tpm.version is %s: set it to %s, or remove the template's TPM",
			found, version, found)
	}
	return nil
}

// maxUSB is the number of usb slots of Linux guests.
const maxUSB = 14

// addUSB adds the USB devices that the Template does not have.
func (b *builder) addUSB() error {
	used, inherited := map[string]bool{}, map[string]bool{}
	for option, value := range b.clone.Options {
		if strings.TrimRight(option, "0123456789") == "usb" {
			used[option] = true
			inherited[proxmox.ParseProperties(value).Value("mapping")] = true
		}
	}
	slot := 0
	for _, device := range b.want.Hardware.USB {
		if inherited[device.Mapping] {
			continue
		}
		for ; slot < maxUSB && used["usb"+strconv.Itoa(slot)]; slot++ {
		}
		if slot == maxUSB {
			return fmt.Errorf("the template leaves no USB slot of %d for the device of mapping %s", maxUSB, device.Mapping)
		}
		b.set["usb"+strconv.Itoa(slot)] = withBool(proxmox.Properties{{Key: "mapping", Value: device.Mapping}}, "usb3", device.USB3).Encode()
		slot++
	}
	return nil
}

// RootOptions returns the options of a class that only root may set, besides those for
// placement and boot data.
func RootOptions(h v1alpha1.Hardware) map[string]string {
	out := map[string]string{}
	c := h.ConfidentialComputing
	if c == nil {
		return out
	}
	if sev := c.AMDSEV; sev != nil {
		p := proxmox.Properties{{Key: "type", Value: sev.Type}}
		p = withBool(withBool(p, "no-debug", sev.NoDebug), "no-key-sharing", sev.NoKeySharing)
		out["amd-sev"] = withBool(withBool(p, "kernel-hashes", sev.KernelHashes), "allow-smt", sev.AllowSMT).Encode()
	}
	if tdx := c.IntelTDX; tdx != nil {
		p := proxmox.Properties{{Key: "type", Value: "tdx"}, {Key: "attestation", Value: proxmox.EncodeBool(tdx.Attestation)}}
		out["intel-tdx"] = withInt(withInt(p, "vsock-cid", tdx.VsockCID), "vsock-port", tdx.VsockPort).Encode()
	}
	return out
}

// HasOptions reports whether a VM has these options with these values.
func HasOptions(cfg proxmox.VMConfig, options map[string]string) bool {
	for option, value := range options {
		if cfg.Options[option] != value {
			return false
		}
	}
	return true
}
