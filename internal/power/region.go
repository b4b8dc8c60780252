// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

// State is whether a Host is on.
type State string

// States.
const (
	Awake State = "Awake"
	// ShuttingDown: the shutdown was requested.
	ShuttingDown State = "ShuttingDown"
	// Waking: the Host was woken and is not online yet.
	Waking State = "Waking"
	// Asleep: the Host was shut down to save energy.
	Asleep State = "Asleep"
	// Offline: the Host is off or unreachable for another reason.
	Offline State = "Offline"
)

// Region is the input of Decide: all Hosts of a Cluster at one moment.
type Region struct {
	Now   time.Time
	Hosts []Host
	// QDeviceVotes are votes for quorum besides those of the Hosts. They count only while
	// the QDevice is connected.
	QDeviceVotes     int
	QDeviceConnected bool
	// Endpoints are the Hosts that the URLs of the cloud config belong to; empty for a URL that
	// belongs to none, such as that of a load balancer.
	Endpoints []string
}

// Host is a Host with everything that a decision depends on. The lists contain names for
// messages.
type Host struct {
	Name     string
	State    State
	Settings declared.PowerSettings
	// CPULoad is the fraction of its CPUs in use.
	CPULoad float64
	// Votes for quorum.
	Votes int
	// IdleSince is since when the Host is online without a VM of ours and without a running
	// guest; zero if it is not.
	IdleSince time.Time

	// VMs of this Kubernetes cluster, including those that are being launched.
	VMs []string
	// OtherVMs are VMs of other Kubernetes clusters, running or not.
	OtherVMs []string
	// Running are other guests that run, OnBoot those that start with the Host.
	Running, OnBoot []string
	// HA are the HA services on the Host and the rules that name it.
	HA []string
	// Ceph are the Ceph daemons on the Host.
	Ceph []string
	// Replications are replication jobs to and from the Host.
	Replications []string
	// Backups are backup jobs with guests of the Host, and when each is due.
	Backups map[string]time.Time
	Tasks   []string
	// Templates are the names of the templates on the Host. The Host is needed to clone
	// them even if their disks are on a shared storage.
	Templates []string
	// PendingTemplates are ProxmoxTemplates whose Templates are to be built or deleted.
	PendingTemplates []string
	// Exports are network storages of the Cluster whose server is the Host.
	Exports []string
	// Maintenance describes who put the Host into maintenance; empty if nobody did.
	Maintenance string
	// WakeAddress is the MAC address for Wake-on-LAN; empty if there is none.
	WakeAddress string
	// PrivilegeMissing describes the privilege that the account lacks to shut the Host down;
	// empty if it has all, or if the Host is not to be shut down.
	PrivilegeMissing string
	// Unknown describes what could not be read.
	Unknown []string
}

// isEnrolled reports whether the Host takes part in power management.
func (h Host) isEnrolled() bool { return h.Settings.Mode != declared.PowerNone }

// isDecided reports whether Decide returns a Decision for the Host: also for one that does not
// take part any more, but is off.
func (h Host) isDecided() bool {
	return h.isEnrolled() || h.State == Asleep || h.State == Waking || h.State == ShuttingDown
}

// Energy returns the estimated Energy of the Host, and what is saved because it is off. It is zero
// if its settings contain no watts.
func (h Host) Energy() (used, saved declared.Energy) {
	switch h.State {
	case Awake, Waking:
		used = h.Settings.Energy(h.CPULoad)
	case Asleep:
		saved = h.Settings.Energy(0)
	case ShuttingDown, Offline:
	}
	return used, saved
}
