// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// optionPrivileges names the privilege that changes each option of a VM. Numbered options are listed without their
// number; options in none of the tables are reserved for root.
var optionPrivileges = byOption(map[string]string{
	"VM.Config.CPU":     "cores cpu cpulimit cpuunits numa sockets vcpus smp",
	"VM.Config.Memory":  "memory balloon shares allow-ksm",
	"VM.Config.HWType":  "acpi hotplug kvm machine scsihw smbios1 tablet vga watchdog audio0 rng0",
	"VM.Config.Options": "agent autostart bios description keyboard localtime name onboot ostype protection reboot startdate startup template tags tdf migrate_downtime migrate_speed",
	"VM.Config.Disk":    "boot bootdisk vmstatestorage unused",
	"VM.Config.Network": "net",
	"VM.PowerMgmt":      "freeze",
})

const cloudInitOptions = "cicustom cipassword citype ciuser ciupgrade nameserver searchdomain sshkeys ipconfig"

func byOption(byPrivilege map[string]string) map[string]string {
	out := map[string]string{}
	for priv, options := range byPrivilege {
		for _, o := range strings.Fields(options) {
			out[o] = priv
		}
	}
	return out
}

var trailingNumber = regexp.MustCompile(`\d+$`)

// stem is an option without its number; options that end in a digit of their own keep it.
func stem(option string) string {
	switch option {
	case "smbios1", "audio0", "rng0", "efidisk0", "tpmstate0":
		return option
	}
	return trailingNumber.ReplaceAllString(option, "")
}

// notOptions are parameters of the config and create calls that do not end up in the config.
var notOptions = []string{
	"node", "vmid", "digest", "delete", "revert", "force", "skiplock", "background_delay", "pool", "start", "storage", "archive",
	"unique", "bwlimit", "live-restore", "import-working-storage", "ha-managed",
}

// optionsOf are the VM options among a request's parameters.
func optionsOf(r *Request) map[string]string {
	out := map[string]string{}
	for k, v := range r.Params.Values {
		if !slices.Contains(notOptions, k) {
			out[k] = v
		}
	}
	return out
}

// target is what config permissions are checked against: the VM, or the pool that it will be in.
type target struct {
	vmid   int
	pool   string
	create bool
}

func (e *Engine) needOnVM(r *Request, t target, privs ...string) error {
	if t.pool != "" && e.need(r, "/pool/"+t.pool, privs...) == nil {
		return nil
	}
	return e.need(r, "/vms/"+strconv.Itoa(t.vmid), privs...)
}

// checkOptions decides for every option whether the caller may set or delete it.
func (e *Engine) checkOptions(r *Request, t target, options map[string]string) error {
	if r.Who.IsRoot() {
		return nil
	}
	for _, opt := range slices.Sorted(maps.Keys(options)) {
		if err := e.checkOption(r, t, opt, options[opt]); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) checkOption(r *Request, t target, opt, v string) error {
	base := stem(opt)
	if qm.IsDriveKey(opt) || opt == "cdrom" {
		return e.checkDriveOption(r, t, opt, v)
	}
	switch base {
	case "serial":
		if v != "" && v != "socket" {
			return failf("only root can modify '%s' config for real devices", opt)
		}
		return e.needOnVM(r, t, "VM.Config.HWType")
	case "hostpci", "usb":
		return e.checkDevice(r, t, opt, v)
	case "virtiofs":
		if err := e.needOnVM(r, t, "VM.Config.Disk"); err != nil {
			return err
		}
		return e.checkMappings(r, map[string]string{opt: v})
	case "startup":
		if err := e.needOnVM(r, t, "VM.Config.Options"); err != nil {
			return err
		}
		return e.need(r, "/", "Sys.Modify")
	}
	if priv := optionPrivileges[base]; priv != "" {
		return e.needOnVM(r, t, priv)
	}
	if slices.Contains(strings.Fields(cloudInitOptions), base) {
		if e.needOnVM(r, t, "VM.Config.Cloudinit") == nil {
			return nil
		}
		return e.needOnVM(r, t, "VM.Config.Network")
	}
	return failf("only root can set '%s' config", opt)
}

func (e *Engine) checkDriveOption(r *Request, t target, opt, v string) error {
	if t.create {
		return nil // only the storage's rights count then
	}
	d, _ := qm.ParseDrive(opt, v)
	switch {
	case d.IsCloudInit():
		return e.needOnVM(r, t, "VM.Config.Cloudinit", "VM.Config.CDROM")
	case d.IsCDROM():
		return e.needOnVM(r, t, "VM.Config.CDROM")
	default:
		return e.needOnVM(r, t, "VM.Config.Disk")
	}
}

// checkDevice lets mapped devices through; raw ones are root's.
func (e *Engine) checkDevice(r *Request, t target, opt, v string) error {
	kind := map[string]string{"hostpci": "pci", "usb": "usb"}[stem(opt)]
	mapping := qm.ParseFields(v)["mapping"]
	if v != "" && mapping == "" && !strings.HasPrefix(v, "spice") {
		return failf("only root can set '%s' config for non-mapped devices", opt)
	}
	if err := e.needOnVM(r, t, "VM.Config.HWType"); err != nil {
		return err
	}
	if mapping == "" {
		return nil
	}
	return e.need(r, "/mapping/"+kind+"/"+mapping, "Mapping.Use")
}

var newDisk = regexp.MustCompile(`^([^:/]+):(\d+(?:\.\d+)?)$`)

// checkStorageAccess looks at every drive that a request sets: may the caller allocate there, or use that volume?
func (e *Engine) checkStorageAccess(r *Request, vmid int, options map[string]string, def string) error {
	for _, key := range qm.DriveKeys(options) {
		d, ok := qm.ParseDrive(key, options[key])
		if !ok || d.File == "none" {
			continue
		}
		if d.File == "cdrom" {
			if err := e.need(r, "/", "Sys.Console"); err != nil {
				return err
			}
			continue
		}
		if strings.HasPrefix(d.File, "/") {
			if !r.Who.IsRoot() {
				return failf("Only root can pass arbitrary filesystem paths.")
			}
			continue
		}
		if err := e.checkDriveStorage(r, vmid, d, def); err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) checkDriveStorage(r *Request, vmid int, d qm.Drive, def string) error {
	id := cmp.Or(d.Storage(), def)
	fresh := newDisk.MatchString(d.File) || strings.HasSuffix(d.File, ":cloudinit")
	e.mu.Lock()
	s, err := e.checkStorage(id, r.host)
	v := e.volume(r.host, d.File)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if !fresh {
		return e.checkVolumeUse(r, vmid, s, d, v)
	}
	if err := e.need(r, "/storage/"+id, "Datastore.AllocateSpace"); err != nil {
		return err
	}
	if !s.holds("images") {
		return failf("storage '%s' does not support content-type 'images'", id)
	}
	return e.checkImport(r, d)
}

// checkVolumeUse: an ISO needs the right to read its storage, another VM's disk the right to change that VM.
func (e *Engine) checkVolumeUse(r *Request, vmid int, s *Storage, d qm.Drive, v *Volume) error {
	at := "/storage/" + s.ID
	if v != nil && v.Content() == "images" && v.Owner == vmid {
		return nil
	}
	if e.Access.Has(r.Who, at, "Datastore.Allocate") {
		return nil
	}
	if _, name, _ := strings.Cut(d.File, ":"); strings.HasPrefix(name, "iso/") {
		return e.needAny(r, at, "Datastore.AllocateSpace", "Datastore.Audit")
	}
	if v != nil && v.Owner != 0 {
		return e.need(r, "/vms/"+strconv.Itoa(v.Owner), "VM.Config.Disk")
	}
	return e.need(r, at, "Datastore.Allocate")
}

func (e *Engine) checkImport(r *Request, d qm.Drive) error {
	from := d.Opts["import-from"]
	switch {
	case from == "":
		return nil
	case strings.HasPrefix(from, "/"):
		if !r.Who.IsRoot() {
			return failf("Only root can pass arbitrary filesystem paths.")
		}
		return nil
	}
	id, _, _ := strings.Cut(from, ":")
	e.mu.Lock()
	_, err := e.checkStorage(id, r.host)
	v := e.volume(r.host, from)
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if v != nil && v.Content() == "images" {
		return e.need(r, "/vms/"+strconv.Itoa(v.Owner), "VM.Clone")
	}
	return e.needAny(r, "/storage/"+id, "Datastore.AllocateSpace", "Datastore.Audit")
}

// checkBridges demands SDN.Use on every bridge, or on the bridge's VLAN if one is set.
func (e *Engine) checkBridges(r *Request, options map[string]string) error {
	for _, key := range qm.NetKeys(options) {
		n := qm.ParseNet(options[key])
		bridge := n.Opts["bridge"]
		if bridge == "" {
			continue
		}
		at := "/sdn/zones/" + e.zoneOf(bridge) + "/" + bridge
		if tag := n.Opts["tag"]; tag != "" {
			at += "/" + tag
		}
		if err := e.need(r, at, "SDN.Use"); err != nil {
			return err
		}
	}
	return nil
}

// zoneOf is the SDN zone of a bridge; plain bridges are in "localnetwork".
func (e *Engine) zoneOf(bridge string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.vnets.has(bridge) {
		return fmt.Sprint(e.vnets.field(bridge, "zone"))
	}
	return "localnetwork"
}

// checkTags holds changes of tags against the cluster's rules for tags.
func (e *Engine) checkTags(r *Request, old, changed string) error {
	if e.Access.Has(r.Who, "/", "Sys.Modify") {
		return nil
	}
	e.mu.Lock()
	access := qm.ParseFields(e.options["user-tag-access"])
	registered := qm.TagList(e.options["registered-tags"])
	allowed := e.allowedTags(r, false)
	e.mu.Unlock()
	mode := cmp.Or(access["user-allow"], "free")
	before, after := qm.TagList(old), qm.TagList(changed)
	for _, tag := range append(slices.Clone(after), before...) {
		if slices.Contains(before, tag) == slices.Contains(after, tag) {
			continue
		}
		if slices.Contains(registered, tag) || (mode != "free" && !slices.Contains(allowed, tag)) {
			return denied(fmt.Sprintf("/, Sys.Modify for modifying tag '%s'", tag))
		}
	}
	return nil
}
