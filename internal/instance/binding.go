// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Binding is the part of an intent that ties its VM to cells and cores of the Host.
type Binding struct {
	// Cells of the Host, in the order of the guest's.
	Cells []Cell `json:"cells"`
	// CPUs of the Host that the VM has to itself ("2-3,34-35"); empty where its
	// vCPUs float.
	CPUs string `json:"cpus,omitempty"`
	// Pin is the Host's CPU of each vCPU.
	Pin []int `json:"pin,omitempty"`
	// Way that the CPUs come to the VM.
	Method placement.PinningMethod `json:"way,omitempty"`
	// Hugepages is the option that root sets; empty where there is none to set.
	Hugepages string `json:"hugepages,omitempty"`
}

// Cell is a NUMA cell of the guest.
type Cell struct {
	HostCell  int   `json:"cell"`
	VCPUs     int   `json:"vcpus"`
	MemoryMiB int64 `json:"memoryMiB"`
}

// bindingOf writes a placement's binding down; nil where the VM floats.
func bindingOf(b *placement.Binding) *Binding {
	if b == nil {
		return nil
	}
	out := &Binding{CPUs: b.CPUs.String(), Pin: b.Pin, Method: b.Method, Hugepages: b.Hugepages}
	for _, cell := range b.Cells {
		out.Cells = append(out.Cells, Cell{HostCell: cell.ID, VCPUs: cell.VCPUs, MemoryMiB: cell.MemoryMiB})
	}
	return out
}

// cpus are the CPUs that the VM has to itself. What this controller wrote can be read.
func (b *Binding) cpus() cpuset.CPUSet {
	set, err := cpuset.Parse(b.CPUs)
	if err != nil {
		return cpuset.New()
	}
	return set
}

// reserved is the binding's share of the ledger.
func (b *Binding) reserved() *inventory.Binding {
	if b == nil {
		return nil
	}
	out := &inventory.Binding{CPUs: b.cpus()}
	for _, cell := range b.Cells {
		out.Cells = append(out.Cells, inventory.BoundCell{ID: cell.HostCell, VCPUs: cell.VCPUs, MemoryMiB: cell.MemoryMiB})
	}
	return out
}

// templateFor is the Template that a placement is cloned from: a slot's own, else
// the one that serves the Host.
func templateFor(view inventory.View, class *v1alpha1.ProxmoxNodeClass, chosen placement.Placement) (inventory.Guest, error) {
	if chosen.Binding == nil || chosen.Binding.Slot == 0 {
		return findTemplate(view, class, chosen.Zone)
	}
	return slotTemplate(view, chosen.Zone, chosen.Binding.Slot)
}

// currentTemplate is the Template that the intent's VM would be cloned from now. A
// VM in a slot stays there as long as the slot does.
func (in Intent) currentTemplate(view inventory.View, class *v1alpha1.ProxmoxNodeClass) (inventory.Guest, error) {
	zone := placement.Zone{Region: in.Region, Host: in.Host}
	if in.Binding != nil && in.Binding.Method == placement.PinBySlot {
		return slotTemplate(view, zone, in.TemplateID)
	}
	return findTemplate(view, class, zone)
}

func slotTemplate(view inventory.View, zone placement.Zone, vmid int) (inventory.Guest, error) {
	guest, ok := view.Guest(zone.Region, vmid)
	if !ok || guest.Config == nil || !guest.IsSlot() {
		return inventory.Guest{}, fmt.Errorf("%s: slot template %d is not there any more", zone, vmid)
	}
	return guest, nil
}

// layOut writes the VM's cells into a configuration: a socket for each, so that
// what the guest sees as a socket is a cell of the Host, and its memory to the MiB.
// Cells that the Template brings must go in any case: their memory is another
// VM's, and the start would fail.
func layOut(cfg proxmox.VMConfig, b *Binding, set map[string]string) (remove []string) {
	if b != nil {
		set["numa"] = "1"
		set["sockets"] = strconv.Itoa(len(b.Cells))
		set["cores"] = strconv.Itoa(b.Cells[0].VCPUs)
		first := 0
		for n, cell := range b.Cells {
			vcpus := make([]int, cell.VCPUs)
			for i := range vcpus {
				vcpus[i] = first + i
			}
			first += cell.VCPUs
			set["numa"+strconv.Itoa(n)] = proxmox.NUMACell{
				CPUs: cpuset.New(vcpus...), HostCells: cpuset.New(cell.HostCell), MemoryMiB: int(cell.MemoryMiB), Policy: proxmox.PolicyBind,
			}.Encode()
		}
	}
	for _, slot := range cfg.Compute().NUMASlots() {
		if _, kept := set[slot]; !kept {
			remove = append(remove, slot)
		}
	}
	return remove
}

// ensureBound sets what only root may, where root is the way. It stands apart from
// the one write, which the token makes, and comes before the start: on a VM that
// runs it would wait for the next one.
func (l *launch) ensureBound(ctx context.Context) error {
	b := l.intent.Binding
	if b == nil || (b.Method != placement.PinByRoot && b.Hugepages == "") {
		return nil
	}
	options := proxmox.RootOptions{Hugepages: b.Hugepages}
	if b.Method == placement.PinByRoot {
		options.Affinity = b.cpus()
	}
	root, ok := l.Roots[l.intent.Region]
	if !ok {
		return &LaunchError{Reason: ReasonPermission, err: fmt.Errorf("binding VM %d on host %s to CPUs %s, region %s has no root login in the cloud config any more",
			l.intent.VMID, l.intent.Host, b.CPUs, l.intent.Region)}
	}
	cfg, err := l.client.VMConfig(ctx, l.intent.Host, l.intent.VMID)
	if err != nil {
		return err
	}
	if cfg.Compute().Affinity().Equals(options.Affinity) && cfg.Compute().Hugepages() == options.Hugepages {
		return nil
	}
	if err := l.refuse(cfg); err != nil {
		return err
	}
	options.Digest = cfg.Digest
	if err := root.Bind(ctx, l.intent.Host, l.intent.VMID, options); err != nil {
		return fmt.Errorf("binding VM %d on host %s as root, %w", l.intent.VMID, l.intent.Host, err)
	}
	return nil
}
