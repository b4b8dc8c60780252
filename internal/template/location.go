// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Location is where a Template is required: on each Host, or on one of the Hosts that
// share its storage.
type Location struct {
	Region, Host string
	// Storage is the storage of the Template, Images that of the image file.
	Storage, Images string
	// BootDrives is the storage of the boot drive of a builder VM.
	BootDrives string
	// Shared is whether every Host with the storage can clone the Template.
	Shared bool
	// Problem is why the Host or its storages cannot be used now, and what to do about it.
	// SpecProblem is why the Template cannot be built on any Host, NetworkProblem why its
	// VMs could not start on this one.
	Problem, SpecProblem, NetworkProblem string
	// Excluded is whether the Host is excluded by settings.
	Excluded bool
	// Maintenance is why no builder VM is started on the Host now.
	Maintenance string
	// Required are the privileges for building the Template. MissingPrivileges describes
	// those that are missing.
	Required          []privileges.Required
	MissingPrivileges string
}

// Blocker returns why the Template cannot be built now, and what to do about it; empty if
// it can.
func (l Location) Blocker() string {
	return cmp.Or(l.MissingPrivileges, l.Problem, l.SpecProblem, l.NetworkProblem, l.Maintenance)
}

// baseStorages are the storage types that support template disks: thick LVM and iSCSI do
// not.
var baseStorages = []string{"lvmthin", "zfspool", "rbd", "dir", "nfs", "cifs", "btrfs", "cephfs", "glusterfs", "zfs"}

// locationOn returns the Location of a Host; false if it gets no Template.
func (r Rollout) locationOn(snapshot *observed.Snapshot, host string) (Location, bool) {
	location := locationOnHost(snapshot, host, r.Desired)
	state, _ := r.View.Host(snapshot.Region, host)
	if state.Has(inventory.Excluded) {
		if _, _, building := findUnfinished(snapshot, r.Desired, host); !building && !r.isReady(location) {
			return location, false
		}
		location.Excluded, location.NetworkProblem = true, "" // no VM starts there
	}
	if maintenance, is := state.Condition(inventory.InMaintenance); is && r.Desired.Spec.Prepare != nil && !isBuilderStarted(snapshot, r.Desired, host) {
		location.Maintenance = fmt.Sprintf("the host is %s; its template is prepared afterwards", maintenance.Message)
	}
	return location, true
}

// rank orders the Locations that share a storage: the Template belongs where it already exists, otherwise where it
// can be built, if possible where that was begun.
func (r Rollout) rank(snapshot *observed.Snapshot, l Location) int {
	exists := slices.ContainsFunc(r.Existing, func(e Existing) bool {
		return l.matches(r.Desired, e) && storageOf(e) == l.Storage
	})
	_, _, building := findUnfinished(snapshot, r.Desired, l.Host)
	switch blocker := l.Blocker(); {
	case exists && snapshot.IsOnline(l.Host) && !l.Excluded:
		return 4
	case exists && snapshot.IsOnline(l.Host):
		return 3
	case building && (blocker == "" || blocker == l.Maintenance):
		return 2 // during maintenance too: the start of a builder VM is known late
	case blocker != "":
		return 0
	}
	return 1
}

// findUnfinished returns a VM on a Host that becomes the desired Template and has not failed.
// The row and the configuration of a guest show at different times that it is a template, so
// it may be one already.
func findUnfinished(snapshot *observed.Snapshot, desired Desired, host string) (observed.Guest, ownership.Mark, bool) {
	for _, guest := range snapshot.Guests {
		if guest.Host != host || guest.Config == nil {
			continue
		}
		mark, ok := ownership.Read(guest.Config.Description())
		if ok && mark.VMID == guest.VMID && mark.TemplateUID == desired.UID && desired.matches(mark) && (mark.Builder == nil || mark.Builder.Failed.IsZero()) {
			return guest, mark, true
		}
	}
	return observed.Guest{}, ownership.Mark{}, false
}

// isBuilderStarted reports whether a builder VM was started on a Host: it is completed even if
// maintenance begins.
func isBuilderStarted(snapshot *observed.Snapshot, desired Desired, host string) bool {
	guest, mark, ok := findUnfinished(snapshot, desired, host)
	// The configuration may have been read before the start was recorded.
	return ok && mark.Builder != nil && (!mark.Builder.Started.IsZero() || guest.Status == statusRunning)
}

func storageOf(e Existing) string {
	disk, _ := e.Config.Drives().Boot()
	return disk.Storage
}

// locationOnHost returns the Location of a Template on a Host.
func locationOnHost(snapshot *observed.Snapshot, host string, desired Desired) Location {
	location, storages := selectStorages(snapshot, host, desired.Spec)
	if !snapshot.IsOnline(host) {
		location.Problem = "the host is offline; its template is built when the host is online again"
		return location
	}
	bootDrivesProblem := location.selectBootDrives(snapshot, desired)
	// Objects that are invisible without a privilege seem not to exist.
	if hidden := location.checkPrivileges(snapshot, desired); hidden {
		return location
	}
	location.Problem = cmp.Or(volumeProblem(snapshot, host, desired.Spec.SourceImage.Volume),
		storageProblem(location, desired.Spec.StorageIDs, storages, snapshot.StoragesOf(host)), bootDrivesProblem)
	location.SpecProblem = specProblem(snapshot, desired)
	location.NetworkProblem = networkProblem(snapshot, host, desired)
	return location
}

// selectStorages selects the storages of a Host: that of the volume of the spec or the
// first that accepts import content, and the first that supports template disks. It also
// returns those of the spec's storages that the Host has.
func selectStorages(snapshot *observed.Snapshot, host string, spec v1alpha1.ProxmoxTemplateSpec) (Location, []proxmox.StorageRow) {
	location := Location{Region: snapshot.Region, Host: host, Images: volumeStorage(spec.SourceImage.Volume)}
	var storages []proxmox.StorageRow
	for _, id := range spec.StorageIDs {
		row, ok := snapshot.Storages[observed.StorageKey{Host: host, Storage: id}]
		if !ok {
			continue
		}
		storages = append(storages, row)
		if location.Images == "" && slices.Contains(row.Content, "import") {
			location.Images = id
		}
		if location.Storage == "" && slices.Contains(row.Content, "images") && slices.Contains(baseStorages, row.Type) {
			location.Storage, location.Shared = id, row.Shared
		}
	}
	return location, storages
}

// selectBootDrives selects the storage for the boot drive of a builder VM. It returns why
// there is none.
func (l *Location) selectBootDrives(snapshot *observed.Snapshot, desired Desired) string {
	if desired.Spec.Prepare == nil {
		return ""
	}
	var err error
	if l.BootDrives, err = placement.ISOStorage(snapshot, l.Host, "spec.prepare.storage", desired.Spec.Prepare.Storage); err != nil {
		return err.Error()
	}
	return ""
}

// storageProblem returns why the storages of a Host cannot be used. present are the names
// of all storages of the Host.
func storageProblem(location Location, ids []string, storages []proxmox.StorageRow, present []string) string {
	if len(storages) == 0 {
		return fmt.Sprintf("none of spec.storageIDs (%s) is on this host, which has %s", strings.Join(ids, ", "), strings.Join(present, ", "))
	}
	if location.Images == "" {
		return absentStorages(ids, present) + missingContent(storages, "import", "import content, which the image needs", proxmox.StorageRow.HasFiles,
			"import content, which the image needs; add one that stores files, for example local, and run: pvesm set local --content import,iso,vztmpl,backup")
	}
	if location.Storage == "" {
		return absentStorages(ids, present) + missingContent(storages, "images", "disk images, which the template needs",
			func(row proxmox.StorageRow) bool { return slices.Contains(baseStorages, row.Type) },
			"template disks: thick LVM and iSCSI have no base volumes; add another one")
	}
	for _, row := range storages {
		if !row.Available && (row.Name == location.Images || row.Name == location.Storage) {
			return inactiveStorage(row.Name)
		}
	}
	return ""
}

func inactiveStorage(name string) string {
	return fmt.Sprintf("storage %s is not active on this host; check it with: pvesm status --storage %s", name, name)
}

// absentStorages names the storages that the Host does not have. One of them may be
// misspelled, which a change of the content types of the others would not fix.
func absentStorages(ids, present []string) string {
	absent := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return slices.Contains(present, id) })
	if len(absent) == 0 {
		return ""
	}
	return fmt.Sprintf("%s of spec.storageIDs is not on this host, which has %s; the others are not sufficient: ", strings.Join(absent, ", "), strings.Join(present, ", "))
}

// missingContent describes how to enable a content type on a storage that supports it. The command
// names all content types because Proxmox replaces the list. Without such a storage, it ends with what to add.
func missingContent(storages []proxmox.StorageRow, content, purpose string, supports func(proxmox.StorageRow) bool, add string) string {
	for _, row := range storages {
		if supports(row) {
			return fmt.Sprintf("no storage of spec.storageIDs takes %s; run: pvesm set %s --content %s",
				purpose, row.Name, strings.Join(append([]string{content}, row.Content...), ","))
		}
	}
	return fmt.Sprintf("no storage of spec.storageIDs (%s) supports %s", strings.Join(storageNames(storages), ", "), add)
}

func storageNames(rows []proxmox.StorageRow) []string {
	var out []string
	for _, row := range rows {
		out = append(out, row.Name)
	}
	return out
}

// hasTemplate reports whether the Template that is required at the Location exists.
func (l Location) hasTemplate(desired Desired, existing []Existing) bool {
	return slices.ContainsFunc(existing, func(e Existing) bool { return l.matches(desired, e) })
}

// matches reports whether a Template is the one that is required at the Location.
func (l Location) matches(desired Desired, e Existing) bool {
	return e.Region == l.Region && e.Host == l.Host && desired.matches(e.Mark)
}
