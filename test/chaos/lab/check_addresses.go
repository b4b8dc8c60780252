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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ipam"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// amissAddresses looks for addresses that two Claims have, or none: what the Process
// takes for used it will not give.
func (w *World) amissAddresses(p *Process, want map[int]*karpv1.NodeClaim) (amiss []string) {
	if w.addresses == nil {
		return nil
	}
	pool, err := ipam.NewPool(ipam.Spec{CIDR: w.addresses.CIDR, Ranges: w.addresses.Ranges, Gateway: w.addresses.Gateway})
	if err != nil {
		return []string{err.Error()}
	}
	owners := map[netip.Addr]string{}
	for _, claim := range want {
		given := addressesOf(claim)
		if len(given) != 1 || !pool.Contains(given[0]) {
			amiss = append(amiss, fmt.Sprintf("claim %s has the addresses %v, want one of %v", claim.Name, given, w.addresses.Ranges))
			continue
		}
		if other, twice := owners[given[0]]; twice {
			amiss = append(amiss, fmt.Sprintf("claims %s and %s have the same address %s", other, claim.Name, given[0]))
		}
		owners[given[0]] = claim.Name
	}
	view := p.View()
	for addr := range view.Addresses().All() {
		if owners[addr] == "" && pool.Contains(addr) && !w.isStolen(addr) {
			who, _ := view.Addresses().Owner(addr)
			amiss = append(amiss, fmt.Sprintf("address %s is held by %s", addr, who))
		}
	}
	return amiss
}

// addressesOf are those that a Claim was promised.
func addressesOf(claim *karpv1.NodeClaim) []netip.Addr {
	in, _, err := instance.ReadIntent(claim)
	if err != nil {
		return nil
	}
	return in.Network.Addresses()
}

// Steal lets somebody give a guest of theirs, on a Host, the address of a Claim. False
// when there is none, or the guest cannot be changed now.
func (w *World) Steal(host string, claim *karpv1.NodeClaim) bool {
	addresses := addressesOf(claim)
	i := slices.IndexFunc(w.guests(), func(row proxmox.GuestRow) bool { return row.Host == host && !row.Template && row.VMID < FirstVMID })
	if len(addresses) == 0 || i < 0 {
		return false
	}
	row := w.guests()[i]
	w.mu.Lock()
	w.stolen = append(w.stolen, addresses[0])
	// The other name is what the Process notices.
	change := proxmox.ConfigChange{Set: map[string]string{"ipconfig0": fmt.Sprintf("ip=%s/16", addresses[0]), "name": fmt.Sprintf("thief-%d", len(w.stolen))}}
	w.mu.Unlock()
	if err := w.admin.UpdateVM(context.Background(), host, row.VMID, change); err != nil {
		return false
	}
	return w.remember(row) == nil
}

func (w *World) isStolen(addr netip.Addr) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.stolen, addr)
}
