// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ownership reads and writes the ownership mark in the notes of VMs and
// Templates. The provider never changes a guest without a mark, or with one that does
// not match in every field, regardless of the guest's name.
package ownership

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Mark identifies the owner of a guest, either a Claim or a ProxmoxTemplate.
//
// A field may be added within a version if it is safe to ignore. Any other change
// requires a new version. The fields of header never change.
type Mark struct {
	Version int `json:"v"`
	// VMID of the guest that the mark was written for. That of a copy, or of a
	// backup restored under another VMID, differs.
	VMID int `json:"vmid"`
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string `json:"cluster"`
	// Name of the Claim or ProxmoxTemplate, for information.
	Name string `json:"name,omitempty"`

	ClaimUID string `json:"claim,omitempty"`
	// UUID is the VM's SMBIOS UUID if it is not the Claim's UID: the VM was adopted.
	UUID string `json:"uuid,omitempty"`
	// Machine of the NodeClass that the VM is; empty if it is none.
	Machine string `json:"machine,omitempty"`
	// Retained are the names of the Disks that are kept for the machine.
	Retained []string `json:"retained,omitempty"`
	// CPUs of the Host dedicated to the VM, as a list ("2-3,34-35"), and the CPU of each
	// vCPU, in order ([2,34,3]). The hookscript pins vCPUs accordingly, after it has
	// verified that VMID is the VM's, that Pin has as many entries as the VM has vCPUs,
	// and that each entry is in CPUs and online on the Host.
	CPUs string `json:"cpus,omitempty"`
	Pin  []int  `json:"pin,omitempty"`
	// Host that CPUs and Pin were assigned on; empty in notes of older releases. On another Host,
	// the hookscript does not pin.
	Host string `json:"host,omitempty"`

	// Pinning is how the VM is pinned, and Hugepages the option that the login of root sets.
	Pinning   string `json:"pinning,omitempty"`
	Hugepages string `json:"hugepages,omitempty"`

	// Hooks are the file names of the scripts that the hookscript runs on the Host.
	Hooks []string `json:"hooks,omitempty"`

	// Source is the Template that the VM was cloned from; nil if the VM was adopted.
	Source *Source `json:"source,omitempty"`
	// Boot is the file with the boot data; nil if the VM has none.
	Boot *Boot `json:"boot,omitempty"`
	// Applied is what was last written to the VM from its NodeClass. A VM without it is never updated
	// in place.
	Applied *Applied `json:"applied,omitempty"`

	TemplateUID string `json:"template,omitempty"`
	// Generation identifies the content of a Template: VMs of the same generation are
	// equal, regardless of the VMID of their Template.
	Generation string `json:"generation,omitempty"`
	// Hash and HashVersion of the spec that the Template was built from.
	Hash        string `json:"hash,omitempty"`
	HashVersion string `json:"hashVersion,omitempty"`
	// Settings is the hash of the options last written to the Template in place.
	Settings string `json:"settings,omitempty"`
	// Pool is the resource pool that the Template was last moved to.
	Pool string `json:"pool,omitempty"`
	// Builder is the progress of a builder VM; nil if the VM is not prepared, or was.
	Builder *Builder `json:"builder,omitempty"`

	// unknown are the fields of later releases. They are kept.
	unknown map[string]json.RawMessage
}

// Source is the Template that a VM was cloned from. The names of volumes do not show it on all
// storages.
type Source struct {
	Host  string `json:"host"`
	VMID  int    `json:"vmid"`
	Image string `json:"image"`
	// Full clones do not need the Template any more.
	Full bool `json:"full,omitempty"`
}

// Boot is the file with the boot data of a VM.
type Boot struct {
	Storage string `json:"storage"`
	// Firmware passes the file to the guest, instead of a drive.
	Firmware bool `json:"firmware,omitempty"`
}

// Applied is what was last written to a VM from its NodeClass.
type Applied struct {
	// Hash of the fields that are written to running VMs.
	Hash string `json:"hash,omitempty"`
	// Pool is the resource pool.
	Pool string `json:"pool,omitempty"`
	// HA are the options of the VM in HA, as in the NodeClass; empty if it was not added to HA.
	HA json.RawMessage `json:"ha,omitempty"`
	// Groups is the hash of the security groups.
	Groups string `json:"groups,omitempty"`
	// DiskBytes is the size that the boot disk grows to.
	DiskBytes int64 `json:"disk,omitempty"`
	// Pending are the parts whose write may have been interrupted.
	Pending []Part `json:"pending,omitempty"`
}

// Part is a part of Applied that is written separately.
type Part string

// The parts of Applied.
const (
	PartHA     Part = "ha"
	PartGroups Part = "groups"
)

// IsPending reports whether the write of a part may have been interrupted.
func (a Applied) IsPending(p Part) bool { return slices.Contains(a.Pending, p) }

// Done records that the write of a part ended.
func (a *Applied) Done(p Part) {
	a.Pending = slices.DeleteFunc(slices.Clone(a.Pending), func(pending Part) bool { return pending == p })
}

// WithPending returns a copy in which parts are pending.
func (a Applied) WithPending(parts ...Part) Applied {
	a.Pending = slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.Pending, parts))))
	return a
}

// Builder is the progress of a builder VM, which becomes a Template when it has powered
// itself off. The times are those of the controller's clock.
type Builder struct {
	// BootDrive is the volume with its boot data.
	BootDrive string `json:"bootDrive"`
	// Settings are those of the spec that the VM was created with.
	Settings string `json:"settings,omitempty"`
	// Attempt counts the attempts, from 1.
	Attempt int `json:"attempt,omitempty"`
	// Started is when the VM was started, Prepared when it was found powered off.
	Started  time.Time `json:"started,omitzero"`
	Prepared time.Time `json:"prepared,omitzero"`
	// Failed is when the preparation failed, and Failure why.
	Failed  time.Time `json:"failed,omitzero"`
	Failure string    `json:"failure,omitempty"`
}

// HookName matches valid entries of Hooks: file names, never paths.
var HookName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$`)

const version = 1

// header is the part of a mark that all versions have in common: the owner and the
// dedicated CPUs of the guest. With it a downgraded controller still accounts for its
// VMs, although it must not change guests with a newer mark.
type header struct {
	Version     int    `json:"v"`
	VMID        int    `json:"vmid"`
	KubeCluster string `json:"cluster"`
	ClaimUID    string `json:"claim"`
	TemplateUID string `json:"template"`
	CPUs        string `json:"cpus"`
}

// The mark is an HTML comment, which is not shown when Proxmox renders the notes as
// Markdown. Users may add text around it.
const (
	opening = "<!-- karpenter.proxmox.sinextra.dev "
	closing = " -->"
)

var pattern = regexp.MustCompile(regexp.QuoteMeta(opening) + `(\{[^\n]*\})` + closing)

// Comment returns the mark as an HTML comment.
func (m Mark) Comment() string {
	m.Version = version
	raw, err := json.Marshal(m)
	if err == nil && len(m.unknown) > 0 {
		fields := maps.Clone(m.unknown)
		if err = json.Unmarshal(raw, &fields); err == nil {
			raw, err = json.Marshal(fields)
		}
	}
	if err != nil {
		// Strings, integers and what was read always marshal.
		panic(err)
	}
	return opening + string(raw) + closing
}

// maxNotes is how long the notes of a guest may be in Proxmox.
const maxNotes = 8192

// generated matches the generated text of a VM's notes.
var generated = regexp.MustCompile(`(?m)^Karpenter managed instance, class=.*\n(\n|This VM is managed by Karpenter\..*\n|- .*\n)*`)

// Notes returns a text with the mark below it. A mark in the text is removed.
func (m Mark) Notes(text string) string {
	text = strings.TrimRight(pattern.ReplaceAllString(text, ""), "\n ") + "\n"
	comment := m.Comment()
	if len(text)+len(comment)+2 > maxNotes {
		text = generated.ReplaceAllString(text, "") // what an administrator wrote stays
	}
	return fmt.Sprintf("%s\n%s\n", text, comment)
}

// Newer reports whether a later release wrote the mark. Then only the header was read,
// and the guest must not be changed.
func (m Mark) Newer() bool { return m.Version > version }

// Read returns the mark in a guest's notes. It returns false if there is no valid mark,
// or more than one, as in notes that were pasted together. Check Newer before changing
// the guest.
func Read(notes string) (Mark, bool) {
	found := pattern.FindAllStringSubmatch(notes, -1)
	if len(found) != 1 {
		return Mark{}, false
	}
	raw := []byte(found[0][1])
	var h header
	if err := json.Unmarshal(raw, &h); err != nil || h.Version < 1 || h.KubeCluster == "" {
		return Mark{}, false
	}
	if h.Version > version {
		return Mark{Version: h.Version, VMID: h.VMID, KubeCluster: h.KubeCluster, ClaimUID: h.ClaimUID, TemplateUID: h.TemplateUID, CPUs: h.CPUs}, true
	}
	m := Mark{}
	if err := json.Unmarshal(raw, &m); err != nil || json.Unmarshal(raw, &m.unknown) != nil {
		return Mark{}, false
	}
	for _, field := range fields {
		delete(m.unknown, field)
	}
	if len(m.unknown) == 0 {
		m.unknown = nil
	}
	return m, true
}

// fields are the names of the fields of a Mark.
var fields = func() (out []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Mark]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}()
