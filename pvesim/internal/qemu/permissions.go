// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// optionPrivileges are the privileges to change options of a VM. Numbered options are listed without their number.
// Options in no table are reserved for root.
var optionPrivileges = indexByOption(map[string]string{
	"VM.Config.CPU":     "cores cpu cpulimit cpuunits numa sockets vcpus smp",
	"VM.Config.Memory":  "memory balloon shares allow-ksm",
	"VM.Config.HWType":  "acpi hotplug kvm machine scsihw smbios1 tablet vga watchdog audio0 rng0",
	"VM.Config.Options": "agent autostart bios description keyboard localtime name onboot ostype protection reboot startdate startup template tags tdf migrate_downtime migrate_speed",
	"VM.Config.Disk":    "boot bootdisk vmstatestorage unused",
	"VM.Config.Network": "net",
	"VM.PowerMgmt":      "freeze",
})

func indexByOption(byPrivilege map[string]string) map[string]string {
	out := map[string]string{}
	for priv, options := range byPrivilege {
		for _, o := range strings.Fields(options) {
			out[o] = priv
		}
	}
	return out
}

// nonConfigParams are parameters of config and create calls that are not stored in the config.
var nonConfigParams = []string{
	"node", "vmid", "digest", "delete", "revert", "force", "skiplock", "background_delay", "pool", "start", "storage", "archive",
	"unique", "bwlimit", "live-restore", "import-working-storage", "ha-managed",
}

// vmOptions returns the VM options among the parameters of a request.
func vmOptions(r *api.Request) map[string]string {
	out := map[string]string{}
	for k, v := range r.Params.Values {
		if !slices.Contains(nonConfigParams, k) {
			out[k] = v
		}
	}
	return out
}

// target is the object of a permission check: a VM, or the resource pool that it will be in.
type target struct {
	vmid   int
	pool   string
	create bool
}

// requireOnVM requires privileges on the resource pool or on the VM.
func (p *permissions) requireOnVM(r *api.Request, t target, privs ...string) error {
	if t.pool != "" && p.k.Require(r, "/pool/"+t.pool, privs...) == nil {
		return nil
	}
	return p.k.Require(r, "/vms/"+strconv.Itoa(t.vmid), privs...)
}

// checkOptions returns an error if the caller cannot set or delete one of the options.
func (p *permissions) checkOptions(r *api.Request, t target, options map[string]string) error {
	if r.Who.IsRoot() {
		return nil
	}
	for _, opt := range slices.Sorted(maps.Keys(options)) {
		if err := p.checkOption(r, t, opt, options[opt]); err != nil {
			return err
		}
	}
	return nil
}

func (p *permissions) checkOption(r *api.Request, t target, opt, v string) error {
	base := qm.Stem(opt)
	if qm.IsDriveKey(opt) || opt == "cdrom" {
		return p.checkDriveOption(r, t, opt, v)
	}
	switch base {
	case "serial":
		if v != "" && v != "socket" {
			return api.Failf("only root can modify '%s' config for real devices", opt)
		}
		return p.requireOnVM(r, t, "VM.Config.HWType")
	case "hostpci", "usb":
		return p.checkDevice(r, t, opt, v)
	case "virtiofs":
		if err := p.requireOnVM(r, t, "VM.Config.Disk"); err != nil {
			return err
		}
		return p.checkMappings(r, map[string]string{opt: v})
	case "startup":
		if err := p.requireOnVM(r, t, "VM.Config.Options"); err != nil {
			return err
		}
		return p.k.Require(r, "/", "Sys.Modify")
	}
	if priv := optionPrivileges[base]; priv != "" {
		return p.requireOnVM(r, t, priv)
	}
	if slices.Contains(strings.Fields(cloudinit.Options), base) {
		if p.requireOnVM(r, t, "VM.Config.Cloudinit") == nil {
			return nil
		}
		return p.requireOnVM(r, t, "VM.Config.Network")
	}
	return api.Failf("only root can set '%s' config", opt)
}

func (p *permissions) checkDriveOption(r *api.Request, t target, opt, v string) error {
	if t.create {
		return nil // only privileges on the storage count
	}
	d, _ := qm.ParseDrive(opt, v)
	switch {
	case d.IsCloudInit():
		return p.requireOnVM(r, t, "VM.Config.Cloudinit", "VM.Config.CDROM")
	case d.IsCDROM():
		return p.requireOnVM(r, t, "VM.Config.CDROM")
	default:
		return p.requireOnVM(r, t, "VM.Config.Disk")
	}
}

// checkDevice allows mapped devices. Only root can set others.
func (p *permissions) checkDevice(r *api.Request, t target, opt, v string) error {
	kind := map[string]string{"hostpci": "pci", "usb": "usb"}[qm.Stem(opt)]
	mapping := qm.ParseFields(v)["mapping"]
	if v != "" && mapping == "" && !strings.HasPrefix(v, "spice") {
		return api.Failf("only root can set '%s' config for non-mapped devices", opt)
	}
	if err := p.requireOnVM(r, t, "VM.Config.HWType"); err != nil {
		return err
	}
	if mapping == "" {
		return nil
	}
	return p.k.Require(r, "/mapping/"+kind+"/"+mapping, "Mapping.Use")
}

// checkMappings returns an error if the caller cannot use a mapping in the config.
func (p *permissions) checkMappings(r *api.Request, config map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(config)) {
		path := ""
		switch qm.Stem(key) {
		case "hostpci":
			path = "/mapping/pci/" + qm.ParseFields(config[key])["mapping"]
		case "usb":
			path = "/mapping/usb/" + qm.ParseFields(config[key])["mapping"]
		case "virtiofs":
			path = "/mapping/dir/" + qm.SharedDirectory(config[key])
		}
		if path == "" || strings.HasSuffix(path, "/") {
			continue
		}
		if err := p.k.Require(r, path, "Mapping.Use"); err != nil {
			return err
		}
	}
	return nil
}
