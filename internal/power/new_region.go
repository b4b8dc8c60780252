// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Source is what a Region is built from.
type Source struct {
	View   inventory.View
	Region string
	Facts  Facts
	// KubeCluster is the UID of the Kubernetes cluster, which identifies its VMs.
	KubeCluster string
	Now         time.Time
	// IdleSince returns since when a Host is idle.
	IdleSince func(host string) time.Time
	// PendingTemplates are the names of the ProxmoxTemplates whose Templates are to be built or
	// deleted on a Host.
	PendingTemplates map[observed.HostName][]string
	// Deciding is the Host whose shutdown is recorded, but not requested; it counts as awake.
	Deciding string
}

// EnrolledHosts returns the names of the enrolled Hosts of a region that are online.
func EnrolledHosts(view inventory.View, region string) []string {
	var out []string
	for _, host := range view.Hosts() {
		if host.Region == region && host.Power.Mode != declared.PowerNone && view.Snapshots[region].IsOnline(host.Name) {
			out = append(out, host.Name)
		}
	}
	return out
}

// NewRegion combines a View with the Facts of a Cluster. Hosts that are off without a record in
// the View count as offline.
func NewRegion(s Source) Region {
	region := Region{Now: s.Now, QDeviceVotes: s.Facts.Votes.QDevice, QDeviceConnected: s.Facts.Votes.QDeviceConnected}
	snapshot := s.View.Snapshots[s.Region]
	region.Endpoints = s.Facts.endpoints(snapshot)
	for _, state := range s.View.Hosts() {
		if state.Region != s.Region {
			continue
		}
		row := snapshot.Hosts[state.Name]
		maintenance, _ := state.Condition(inventory.InMaintenance)
		host := Host{
			Name: state.Name, State: s.stateOf(state, row.Online), Settings: state.Power, CPULoad: row.CPULoad,
			Votes: s.Facts.Votes.Hosts[state.Name],
			HA:    slices.Clone(s.Facts.HA[state.Name]), Ceph: s.Facts.Ceph[state.Name], Tasks: s.Facts.tasksOn(state.Name), Exports: s.Facts.Exports[state.Name],
			PendingTemplates: s.PendingTemplates[observed.HostName{Region: s.Region, Host: state.Name}],
			Maintenance:      maintenance.Message, WakeAddress: s.Facts.WakeAddresses[state.Name],
			Unknown: slices.Concat(s.Facts.Unknown, s.Facts.UnknownOf[state.Name]), Backups: map[string]time.Time{},
		}
		if state.Power.Mode == declared.PowerEnabled && snapshot.Facts != nil {
			host.PrivilegeMissing = missingToShutDown(snapshot.Facts, state.Name)
		}
		if state.Has(inventory.MaintenanceUnknown) {
			host.Unknown = append(host.Unknown, "whether the host is in maintenance")
		}
		host.Unknown = append(host.Unknown, unreadable(snapshot)...)
		if err := s.View.Unavailable(s.Region); err != nil {
			host.Unknown = append(host.Unknown, err.Error())
		}
		host.addGuests(s, snapshot)
		host.addReservations(s)
		host.addJobs(s.Facts, snapshot)
		if host.State == Awake && len(host.VMs) == 0 && len(host.OtherVMs) == 0 && len(host.Running) == 0 {
			host.IdleSince = s.IdleSince(host.Name)
		}
		region.Hosts = append(region.Hosts, host)
	}
	return region
}

// stateOf returns whether a Host is on.
func (s Source) stateOf(host inventory.HostState, online bool) State {
	switch {
	case host.Name == s.Deciding && online:
		return Awake
	case host.Sleep == declared.ShuttingDown:
		return ShuttingDown
	case host.Sleep == declared.Asleep:
		return Asleep
	case host.Sleep == declared.Waking:
		return Waking
	case !online:
		return Offline
	}
	return Awake
}

// unreadable describes what the account may not read: objects that Proxmox omits from its
// lists.
func unreadable(snapshot *observed.Snapshot) []string {
	if snapshot.Facts == nil || snapshot.Facts.Permissions == nil {
		return []string{"the privileges of the account"}
	}
	if missing := MissingPrivileges(snapshot.Facts.Permissions); len(missing) > 0 {
		return []string{fmt.Sprintf("what %s may not read: it lacks %s", snapshot.Facts.User, strings.Join(missing, ", "))}
	}
	return nil
}

// addGuests adds the guests of the Host by kind.
func (h *Host) addGuests(s Source, snapshot *observed.Snapshot) {
	for _, guest := range guestsOn(snapshot, h.Name) {
		name := guestName(guest)
		if guest.HAState != "" && guest.HAState != "ignored" {
			h.HA = append(h.HA, name)
		}
		owner := owner(guest)
		switch {
		case guest.Template:
			h.Templates = append(h.Templates, cmp.Or(guest.Name, name))
		case owner == s.KubeCluster && owner != "":
			h.VMs = append(h.VMs, name)
		case owner != "":
			h.OtherVMs = append(h.OtherVMs, name)
		case guest.Status != "stopped":
			h.Running = append(h.Running, name)
		case guest.Config == nil:
			h.OnBoot = append(h.OnBoot, name+" (its config is not read)")
		case guest.Config.StartsOnBoot():
			h.OnBoot = append(h.OnBoot, name)
		}
	}
}

// addReservations adds the VMs that are being launched and not visible yet, and those that are
// cloned from a template of the Host. A Reservation that is fulfilled is that of a deleted VM then.
// A VM that waits for capacity reserves none and needs no Host: it is planned on one, asleep or
// not, as soon as it fits.
func (h *Host) addReservations(s Source) {
	for _, r := range s.View.Reservations {
		needed := r.Region == s.Region && !r.Fulfilled && (r.Host == h.Name || r.TemplateHost == h.Name)
		if _, visible := s.View.Guest(r.Region, r.VMID); needed && !visible && r.Amount != (observed.Amount{}) {
			h.VMs = append(h.VMs, fmt.Sprintf("%d (being launched)", r.VMID))
		}
	}
	slices.Sort(h.VMs)
}

// addJobs adds replication and backup jobs. A backup job needs the Hosts that have one of its
// guests.
func (h *Host) addJobs(facts Facts, snapshot *observed.Snapshot) {
	for _, job := range facts.Replications {
		if job.Target == h.Name || snapshot.Guests[job.VMID].Host == h.Name {
			h.Replications = append(h.Replications, job.ID)
		}
	}
	guests := guestsOn(snapshot, h.Name)
	for _, job := range facts.Backups {
		if job.Pool != "" && !mayReadPool(snapshot, job.Pool) {
			job = proxmox.BackupJob{ID: job.ID, Host: job.Host, NextRun: job.NextRun} // any guest may be in the pool
		}
		needed := slices.ContainsFunc(guests, func(guest observed.Guest) bool { return job.Includes(guest.GuestRow) })
		if needed && !job.NextRun.IsZero() {
			h.Backups[job.ID] = job.NextRun
		}
	}
}

// guestsOn returns the guests of a Host by VMID.
func guestsOn(snapshot *observed.Snapshot, host string) []observed.Guest {
	var out []observed.Guest
	for _, guest := range snapshot.Guests {
		if guest.Host == host {
			out = append(out, guest)
		}
	}
	slices.SortFunc(out, func(a, b observed.Guest) int { return cmp.Compare(a.VMID, b.VMID) })
	return out
}

func guestName(guest observed.Guest) string {
	kind := "VM"
	if guest.Kind == proxmox.KindLXC {
		kind = "container"
	}
	return fmt.Sprintf("%s %d", kind, guest.VMID)
}

// owner returns the UID of the Kubernetes cluster in the ownership mark of a guest; empty if it
// has none.
func owner(guest observed.Guest) string {
	if guest.Config == nil {
		return ""
	}
	mark, _ := ownership.Read(guest.Config.Description())
	return mark.KubeCluster
}
