// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// TestChooseBurst places many Claims concurrently on 6 equal Hosts. The Hosts differ by
// at most one VM.
func TestChooseBurst(t *testing.T) {
	t.Parallel()
	for _, strategy := range []v1alpha1.ZoneBalance{v1alpha1.ZoneBalanceBalanced, v1alpha1.ZoneBalanceAvailabilityFirst} {
		for _, claims := range []int{60, 57, 4} {
			burst(t, strategy, claims)
		}
	}
}

func burst(t *testing.T, strategy v1alpha1.ZoneBalance, claims int) {
	t.Helper()
	g := NewWithT(t)
	var names []string
	result := observed.Result{Region: "r"}
	for h := range 6 {
		names = append(names, fmt.Sprint("pve", h+1))
		result.Resources.Hosts = append(result.Resources.Hosts, proxmox.HostRow{Name: names[h], Online: true, CPUs: 64, MemoryBytes: 257 * gib})
	}
	i, err := inventory.NewFixed(map[string]*observed.Snapshot{"r": observed.NewSnapshot(result, nil, own)}, inventory.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		byHost = map[string]int{}
		vmids  = map[int]bool{}
	)
	for n := range claims {
		all.Go(func() {
			request := requestFor(need(4, 16), names...)
			request.ClaimUID, request.Strategy = fmt.Sprint("claim-", n), strategy
			r, err := chooseAndReserve(i, request)
			mu.Lock()
			defer mu.Unlock()
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(vmids).NotTo(HaveKey(r.VMID))
			vmids[r.VMID] = true
			byHost[r.Host]++
		})
	}
	all.Wait()
	fewest, most := claims, 0
	for _, name := range names {
		fewest, most = min(fewest, byHost[name]), max(most, byHost[name])
	}
	g.Expect(most-fewest).To(BeNumerically("<=", 1), "%s, %d claims: the Hosts got %v", strategy, claims, byHost)
}

func chooseAndReserve(i *inventory.Inventory, request placement.Request) (inventory.Reservation, error) {
	return i.Ledger().Reserve(request.ClaimUID, func(v inventory.View) (inventory.Reservation, error) {
		p, err := placement.Choose(v, request)
		if err != nil {
			return inventory.Reservation{}, err
		}
		vmid, err := placement.PickVMID(v, p.Zone.Region, request.ClaimUID, placement.Range{From: 30000, To: 30099})
		return inventory.Reservation{NodePool: request.NodePool, Region: p.Zone.Region, Host: p.Zone.Host, VMID: vmid,
			Amount: observed.Amount{CPUs: p.Need.CPUs, MemoryBytes: p.Need.MemoryBytes}}, err
	})
}
