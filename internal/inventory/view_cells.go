// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"
	"sync"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Cells returns the cells of a Host. They are computed with the first call. If the Host is
// unknown, Problem is set.
func (v View) Cells(region, host string) *CellAccounts {
	if v.index == nil {
		return &CellAccounts{Problem: v.unlistedMessage(region)}
	}
	account, ok := v.index.hosts[region][host]
	if !ok {
		return &CellAccounts{Problem: v.unlistedMessage(region)}
	}
	return account.cells()
}

// NodePoolCells returns the IDs of the cells of a Host that VMs of a NodePool are bound to.
func (v View) NodePoolCells(region, host, nodePool string) []int {
	var cells []int
	for _, p := range reservationsOn(v, region, host) {
		if p.NodePool != nodePool || p.Binding == nil {
			continue
		}
		for _, cell := range p.Binding.Cells {
			cells = append(cells, cell.ID)
		}
	}
	slices.Sort(cells)
	return slices.Compact(cells)
}

// addCells adds the cells to every Host. They are computed on first use, because most
// NodeClasses need none.
func (x *index) addCells(v View) {
	for region, snapshot := range v.Snapshots {
		byHost := sync.OnceValue(func() map[string][]observed.Guest {
			guests := map[string][]observed.Guest{}
			for _, guest := range snapshot.Guests {
				guests[guest.Host] = append(guests[guest.Host], guest)
			}
			return guests
		})
		for name, host := range snapshot.Hosts {
			account := x.hosts[region][name]
			account.cells = sync.OnceValue(func() *CellAccounts {
				return newCellAccounts(host, account.limits, byHost()[name], reservationsOn(v, region, name))
			})
		}
	}
}

// reservationsOn returns the Reservations that count on a Host. A VM that was migrated away
// counts on its current Host. A clone to another Host is listed on that of its template until
// it ends, and counts on the other one.
func reservationsOn(v View, region, host string) []placedReservation {
	var out []placedReservation
	for _, r := range v.Reservations {
		if r.Region != region || r.Host != host {
			continue
		}
		guest, visible := v.Guest(region, r.VMID)
		if visible && guest.Host != host {
			if r.Fulfilled {
				continue
			}
			guest = observed.Guest{}
		}
		out = append(out, placedReservation{r, guest})
	}
	return out
}
