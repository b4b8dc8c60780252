// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"net/netip"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Reservation is capacity, a VMID and addresses reserved for a Claim, or for a VM that becomes a Template.
// Its VM may not be visible in a Snapshot yet.
type Reservation struct {
	// ClaimUID is the UID of the Claim; of a Template, it is the name that its provider gives the Reservation.
	ClaimUID string
	Template bool
	NodePool string
	Region   string
	Host     string
	// TemplateHost has the template that the VM is cloned from.
	TemplateHost string
	VMID         int
	Storage      string
	// Amount is zero while the VM waits for capacity.
	observed.Amount
	DiskBytes int64
	// Disks are those besides the boot disk.
	Disks []ReservedDisk
	// Devices are PCI mappings, one entry per device.
	Devices []string
	// Binding to cells and cores of the Host; nil if the VM floats.
	Binding *Binding
	// Addresses of the VM's interfaces.
	Addresses []netip.Addr
	// Machine of the class; empty if it has none.
	Machine   string
	CreatedAt time.Time
	// Fulfilled is true once a Snapshot shows the VM with its reserved size. From then on
	// the VM counts, and the Reservation only keeps its VMID, addresses and NodePool.
	Fulfilled bool
}

// ReservedDisk is capacity of a storage.
type ReservedDisk struct {
	Storage string
	Bytes   int64
}

// isVisible reports whether the Snapshot shows the VM with its reserved size. A clone
// has its template's size until it is configured, and its disks grow until its lock is
// removed; a running VM is configured. The Host
// does not matter: a migrated VM counts where it is, and the launch fails if another
// guest uses the VMID.
func isVisible(r Reservation, snapshot *observed.Snapshot) bool {
	guest, ok := snapshot.Guest(r.VMID)
	if !ok || !guest.HasResources() || guest.Stale || guest.Lock == "clone" {
		return false
	}
	return guest.Status == observed.StatusRunning || guest.Allocated.Covers(r.Amount)
}
