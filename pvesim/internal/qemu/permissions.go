// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
)

// optionPrivileges are the privileges to change options of a VM. Numbered options are listed without their number.
// Options in no table are reserved for root.
var optionPrivileges = indexByOption(map[string]string{
	"VM.Config.CPU":     "cores cpu cpulimit cpuunits numa sockets vcpus smp",
	"VM.Config.Memory":  "memory balloon shares allow-ksm",
	"VM.Config.HWType":  "acpi hotplug kvm machine scsihw smbios1 tablet vga watchdog audio0",
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
func vmOptions(r *api.Request) map[string]string { return api.ParamsExcept(r, nonConfigParams...) }

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
	case "virtiofs", "rng0":
		priv := map[string]string{"virtiofs": "VM.Config.Disk", "rng0": "VM.Config.HWType"}[base]
		if err := p.requireOnVM(r, t, priv); err != nil {
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
		case "rng0":
			if qm.IsHardwareRNG(config[key]) {
				path = "/mapping/hwrng"
			}
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

var newDisk = regexp.MustCompile(`^([^:/]+):(\d+(?:\.\d+)?)$`)

// checkStorageAccess returns an error if the caller cannot allocate or use the volume of a drive in the options.
func (p *permissions) checkStorageAccess(r *api.Request, vmid int, options map[string]string, def string) error {
	for _, key := range qm.DriveKeys(options) {
		d, ok := qm.ParseDrive(key, options[key])
		var err error
		switch {
		case !ok || d.File == "none":
		case d.File == "cdrom":
			err = p.k.Require(r, "/", "Sys.Console")
		case strings.HasPrefix(d.File, "/"):
			err = checkHostPath(r)
		default:
			err = p.checkDriveStorage(r, vmid, d, def)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkHostPath returns an error if the caller cannot use files of the host by their path.
func checkHostPath(r *api.Request) error {
	if !r.Who.IsRoot() {
		return api.Failf("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 586.")
	}
	return nil
}

func (p *permissions) checkDriveStorage(r *api.Request, vmid int, d qm.Drive, def string) error {
	id := cmp.Or(d.Storage(), def)
	fresh := newDisk.MatchString(d.File) || strings.HasSuffix(d.File, ":cloudinit")
	p.k.Mu.Lock()
	s, err := p.store.CheckStorage(id, r.Host)
	v := p.store.Volume(r.Host, d.File)
	p.k.Mu.Unlock()
	if err != nil {
		return err
	}
	if !fresh {
		return p.checkVolumeUse(r, vmid, s, d, v)
	}
	if err := p.k.Require(r, "/storage/"+id, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	if !s.HasContent("images") {
		return api.Failf("storage '%s' does not support content-type 'images'", id)
	}
	return p.checkImport(r, d)
}

// checkVolumeUse returns an error if the caller cannot use an existing volume. An ISO needs read access to its storage,
// a disk of another VM the privilege to change that VM.
func (p *permissions) checkVolumeUse(r *api.Request, vmid int, s *storage.Storage, d qm.Drive, v *storage.Volume) error {
	at := "/storage/" + s.ID
	if v != nil && v.Content() == "images" && v.Owner == vmid {
		return nil
	}
	if p.k.Access.Has(r.Who, at, "Datastore.Allocate") {
		return nil
	}
	if _, name, _ := strings.Cut(d.File, ":"); strings.HasPrefix(name, "iso/") {
		return p.k.RequireAny(r, at, "Datastore.AllocateSpace", "Datastore.Audit")
	}
	if v != nil && v.Owner != 0 {
		return p.k.Require(r, "/vms/"+strconv.Itoa(v.Owner), "VM.Config.Disk")
	}
	return p.k.Require(r, at, "Datastore.Allocate")
}

func (p *permissions) checkImport(r *api.Request, d qm.Drive) error {
	from := d.Opts["import-from"]
	switch {
	case from == "":
		return nil
	case strings.HasPrefix(from, "/"):
		return checkHostPath(r)
	}
	id, _, _ := strings.Cut(from, ":")
	p.k.Mu.Lock()
	_, err := p.store.CheckStorage(id, r.Host)
	v := p.store.Volume(r.Host, from)
	p.k.Mu.Unlock()
	if err != nil {
		return err
	}
	if v != nil && v.Content() == "images" {
		return p.k.Require(r, "/vms/"+strconv.Itoa(v.Owner), "VM.Clone")
	}
	return p.k.RequireAny(r, "/storage/"+id, "Datastore.AllocateSpace", "Datastore.Audit")
}

// checkBridges requires SDN.Use on each bridge, or on its VLAN and trunks if there are any.
func (p *permissions) checkBridges(r *api.Request, options map[string]string) error {
	for _, key := range qm.NetKeys(options) {
		n := qm.ParseNet(options[key])
		bridge := n.Opts["bridge"]
		if bridge == "" {
			continue
		}
		at := "/sdn/zones/" + p.network.ZoneOf(bridge) + "/" + bridge
		paths := []string{at}
		if vlans := n.VLANs(); len(vlans) > 0 {
			paths = nil
			for _, vlan := range vlans {
				paths = append(paths, at+"/"+strconv.Itoa(vlan))
			}
		}
		for _, path := range paths {
			if err := p.k.Require(r, path, "SDN.Use"); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkTags returns an error if the caller cannot make a change of tags.
func (p *permissions) checkTags(r *api.Request, old, changed string) error {
	if p.k.Access.Has(r.Who, "/", "Sys.Modify") {
		return nil
	}
	p.k.Mu.Lock()
	access := qm.ParseFields(p.k.Options["user-tag-access"])
	registered := qm.TagList(p.k.Options["registered-tags"])
	allowed := p.k.AllowedTags(r, false)
	p.k.Mu.Unlock()
	mode := cmp.Or(access["user-allow"], "free")
	before, after := qm.TagList(old), qm.TagList(changed)
	for _, tag := range append(slices.Clone(after), before...) {
		if slices.Contains(before, tag) == slices.Contains(after, tag) {
			continue
		}
		if slices.Contains(registered, tag) || (mode != "free" && !slices.Contains(allowed, tag)) {
			return api.Denied(fmt.Sprintf("/, Sys.Modify for modifying tag '%s'", tag))
		}
	}
	return nil
}

// checkCreateTags checks the tags of a new VM. PVE 9.2 passes a hash instead of the old tags to the check, which then
// appears in the error.
func (p *permissions) checkCreateTags(r *api.Request, tags string) error {
	err := p.checkTags(r, "", tags)
	if err == nil {
		return nil
	}
	p.k.Mu.Lock()
	registered := qm.TagList(p.k.Options["registered-tags"])
	p.k.Mu.Unlock()
	for _, tag := range qm.TagList(tags) {
		if slices.Contains(registered, tag) {
			return err
		}
	}
	return api.Denied("/, Sys.Modify for modifying tag 'HASH(0x5f1d2c3b4a60)'")
}
