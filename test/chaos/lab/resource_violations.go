// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ipam"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// addressViolations returns addresses that two NodeClaims have and addresses that the Process
// considers used although no NodeClaim has them.
func (e *Env) addressViolations(p *Process, want map[int]*karpv1.NodeClaim) (violations []string) {
	if e.addresses == nil {
		return nil
	}
	pool, err := ipam.NewPool(ipam.Spec{CIDR: e.addresses.CIDR, Ranges: e.addresses.Ranges, Gateway: e.addresses.Gateway})
	if err != nil {
		return []string{err.Error()}
	}
	owners := map[netip.Addr]string{}
	for _, claim := range want {
		given := addressesOf(claim)
		if len(given) != 1 || !pool.Contains(given[0]) {
			violations = append(violations, fmt.Sprintf("claim %s has addresses %v, want one of %v", claim.Name, given, e.addresses.Ranges))
			continue
		}
		if other, twice := owners[given[0]]; twice {
			violations = append(violations, fmt.Sprintf("claims %s and %s have the same address %s", other, claim.Name, given[0]))
		}
		owners[given[0]] = claim.Name
	}
	view := p.Inventory.View()
	for addr := range view.Addresses().All() {
		lost := slices.ContainsFunc(view.Snapshots[testenv.Region].Addresses[addr], func(owner observed.AddressOwner) bool { return e.isLost(owner.VMID) })
		if owners[addr] == "" && pool.Contains(addr) && !e.isTaken(addr) && !lost {
			who, _ := view.Addresses().Owner(addr)
			violations = append(violations, fmt.Sprintf("address %s is held by %s", addr, who))
		}
	}
	return violations
}

// addressesOf returns the addresses in a NodeClaim's intent.
func addressesOf(claim *karpv1.NodeClaim) []netip.Addr {
	in, _ := instance.ReadIntent(claim)
	return in.Network.Addresses()
}

// TakeAddress configures the address of a NodeClaim on another user's guest on a host, if possible.
func (e *Env) TakeAddress(host string, claim *karpv1.NodeClaim) {
	addresses, guests := addressesOf(claim), e.guests()
	i := slices.IndexFunc(guests, func(row proxmox.GuestRow) bool {
		return row.Host == host && !row.Template && row.VMID < testenv.FirstVMID
	})
	if len(addresses) == 0 || i < 0 {
		return
	}
	row := guests[i]
	e.mu.Lock()
	e.takenAddresses = append(e.takenAddresses, addresses[0])
	// The Process reads the configuration again when the name changes.
	change := proxmox.ConfigChange{Set: map[string]string{"ipconfig0": fmt.Sprintf("ip=%s/16", addresses[0]), "name": fmt.Sprintf("foreign-%d", len(e.takenAddresses))}}
	e.mu.Unlock()
	if e.admin.UpdateVM(context.Background(), host, row.VMID, change) == nil {
		testenv.Must(e.t, e.recordForeign(row))
	}
}

func (e *Env) isTaken(addr netip.Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.takenAddresses, addr)
}

// haViolations returns VMs that are not in HA, and resources and rules of VMs that do not exist.
func (e *Env) haViolations(want map[int]*karpv1.NodeClaim) (violations []string) {
	if !e.ha {
		return nil
	}
	found := e.Sim.HAResources()
	for vmid := range found {
		if want[vmid] == nil {
			violations = append(violations, fmt.Sprintf("HA resource of VM %d leaked", vmid))
		}
	}
	var all []string
	for vmid, claim := range want {
		all = append(all, proxmox.HAResourceID(vmid))
		if found[vmid]["state"] != "started" {
			violations = append(violations, fmt.Sprintf("VM %d of claim %s is not in HA: %v", vmid, claim.Name, found[vmid]))
		}
	}
	rules := e.Sim.HARules()
	if e.Class.Spec.HighAvailability.SeparateHosts && len(want) > 1 && len(rules) != 1 {
		violations = append(violations, fmt.Sprintf("%d VMs in HA have the rules %v, want one", len(want), rules))
	}
	for name, resources := range rules {
		isStale := slices.ContainsFunc(resources, func(id string) bool { return !slices.Contains(all, id) })
		if isStale || (len(all) != 1 && len(resources) != len(all)) {
			violations = append(violations, fmt.Sprintf("HA rule %s has the resources %v, want %v", name, resources, all))
		}
	}
	return violations
}

// ledgerViolations compares the capacity that a Process considers used with the configurations
// of all guests that its token can read.
func (e *Env) ledgerViolations(p *Process) (violations []string) {
	used, foreign := map[string]observed.Amount{}, e.foreign()
	for _, row := range e.guests() {
		if _, hidden := foreign[row.VMID]; row.Template || (hidden && e.Installation.PoolScoped) {
			continue
		}
		cfg, err := e.admin.VMConfig(context.Background(), row.Host, row.VMID)
		if err != nil {
			return []string{fmt.Sprintf("reading VM %d: %v", row.VMID, err)}
		}
		c := cfg.Compute()
		used[row.Host] = used[row.Host].Plus(observed.Amount{CPUs: c.Cores() * c.Sockets(), MemoryBytes: int64(c.MemoryMiB()) << 20})
	}
	for _, host := range p.Inventory.View().Hosts() {
		if got := host.Allocated.Plus(host.Reserved); got != used[host.Name] && host.Region == testenv.Region {
			violations = append(violations, fmt.Sprintf("the ledger of host %s has %+v, its guests use %+v", host.Name, got, used[host.Name]))
		}
	}
	return violations
}

// machineHost is the host of the classes' machine.
const machineHost = "pve1"

// addMachine adds a machine with a retained disk to a class.
func addMachine(class *v1alpha1.ProxmoxNodeClass) {
	class.Spec.Machines = []v1alpha1.Machine{{Name: "machine", Zone: machineHost}}
	class.Spec.Disks = append(class.Spec.Disks, v1alpha1.Disk{Name: "retained", Size: "5Gi", Storage: "local-lvm", Retain: true})
}

// allowRetainedDisks grants the token what docs/permissions.md lists for retained disks.
func allowRetainedDisks(s *pvesim.Scenario) {
	s.Roles = append(s.Roles, pvesim.Role{ID: "KarpenterRetained", Privileges: []string{"VM.Config.Disk"}})
	s.ACLs = append(s.ACLs, pvesim.ACL{Path: fmt.Sprintf("/vms/%d", proxmox.RetainedVMID), Role: "KarpenterRetained", User: "kubernetes@pve"})
}

// retainedViolations checks that the machine has exactly one retained disk once a VM was
// launched, that it stays the same one, and that the VM has it.
func (e *Env) retainedViolations(ctx context.Context, vms int) (violations []string) {
	if !e.machine {
		return nil
	}
	volumes, err := e.admin.Volumes(ctx, machineHost, "local-lvm", "images")
	if err != nil {
		return []string{fmt.Sprintf("listing retained disks: %v", err)}
	}
	var found []string
	for _, volume := range volumes {
		if volume.VMID == proxmox.RetainedVMID {
			found = append(found, volume.ID)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(found) > 1:
		return []string{fmt.Sprintf("the machine has the retained disks %v, want one", found)}
	case len(found) == 1 && e.retained == "":
		e.retained = found[0]
	case len(found) == 0 && (e.retained != "" || vms > 0):
		return []string{fmt.Sprintf("the retained disk %s is gone", e.retained)}
	case len(found) == 1 && found[0] != e.retained:
		return []string{fmt.Sprintf("the retained disk is %s, want %s", found[0], e.retained)}
	}
	return nil
}
