// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ipam"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
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
		lost := slices.ContainsFunc(view.Snapshots[testenv.Region].Addresses[addr], func(owner inventory.AddressOwner) bool { return e.isLost(owner.VMID) })
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

// TakeAddress configures the address of a NodeClaim on another user's guest on a host. It
// reports whether that succeeded.
func (e *Env) TakeAddress(host string, claim *karpv1.NodeClaim) bool {
	addresses, guests := addressesOf(claim), e.guests()
	i := slices.IndexFunc(guests, func(row proxmox.GuestRow) bool {
		return row.Host == host && !row.Template && row.VMID < testenv.FirstVMID
	})
	if len(addresses) == 0 || i < 0 {
		return false
	}
	row := guests[i]
	e.mu.Lock()
	e.takenAddresses = append(e.takenAddresses, addresses[0])
	// The Process reads the configuration again when the name changes.
	change := proxmox.ConfigChange{Set: map[string]string{"ipconfig0": fmt.Sprintf("ip=%s/16", addresses[0]), "name": fmt.Sprintf("foreign-%d", len(e.takenAddresses))}}
	e.mu.Unlock()
	if err := e.admin.UpdateVM(context.Background(), host, row.VMID, change); err != nil {
		return false
	}
	return e.recordForeign(row) == nil
}

func (e *Env) isTaken(addr netip.Addr) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.takenAddresses, addr)
}
