// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// burstCluster lists reserved VMs like Proxmox: delayed, and at first without CPUs and
// memory.
type burstCluster struct {
	proxmox.Client
	mu        sync.Mutex
	resources proxmox.Resources
}

func (c *burstCluster) Region() string { return "r" }

func (c *burstCluster) Version(context.Context) (proxmox.Version, error) {
	return proxmox.Version{}, nil
}

func (c *burstCluster) HostNotes(context.Context, string) (string, error) { return "", nil }

func (c *burstCluster) HostInfo(context.Context, string) (proxmox.HostInfo, error) {
	return proxmox.HostInfo{}, nil
}

func (c *burstCluster) Options(context.Context) (proxmox.ClusterOptions, error) {
	return proxmox.ClusterOptions{}, nil
}

func (c *burstCluster) PCIMappings(context.Context) ([]proxmox.PCIMapping, error) { return nil, nil }

func (c *burstCluster) Maintenance(context.Context) ([]string, error) { return nil, nil }

func (c *burstCluster) VMConfig(context.Context, string, int) (proxmox.VMConfig, error) {
	return proxmox.VMConfig{}, nil
}

func (c *burstCluster) User() string { return "" }

func (c *burstCluster) Permissions(context.Context) (proxmox.Permissions, error) {
	return proxmox.Permissions{}, nil
}

func (c *burstCluster) SecurityGroups(context.Context) ([]string, error) { return nil, nil }

func (c *burstCluster) VNets(context.Context) ([]proxmox.VNet, error) { return nil, nil }

func (c *burstCluster) Bridges(context.Context, string) ([]proxmox.Bridge, error) { return nil, nil }

func (c *burstCluster) InterfaceAddresses(context.Context, string) ([]netip.Addr, error) {
	return nil, nil
}

func (c *burstCluster) Resources(context.Context) (proxmox.Resources, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	answer := c.resources
	answer.Guests = slices.Clone(answer.Guests)
	for n := range answer.Guests { // only the older half has CPUs and memory
		if n > len(answer.Guests)/2 {
			answer.Guests[n].Status, answer.Guests[n].CPUs, answer.Guests[n].MemoryBytes = "unknown", 0, 0
		}
	}
	return answer, nil
}

func (c *burstCluster) addVM(r inventory.Reservation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resources.Guests = append(c.resources.Guests, proxmox.GuestRow{
		VMID: r.VMID, Kind: proxmox.KindQEMU, Host: r.Host, Status: "running", CPUs: r.CPUs, MemoryBytes: r.MemoryBytes,
	})
}

// TestChooseBurst places many Claims concurrently on 6 equal Hosts. The Hosts differ by
// at most one VM, with and without polls in between that list some VMs without
// resources.
func TestChooseBurst(t *testing.T) {
	t.Parallel()
	for _, strategy := range []v1alpha1.ZoneBalance{v1alpha1.ZoneBalanceBalanced, v1alpha1.ZoneBalanceAvailabilityFirst} {
		for _, polls := range []bool{false, true} {
			for _, claims := range []int{60, 57, 4} {
				t.Run(fmt.Sprintf("%s/polls=%v/%d", strategy, polls, claims), func(t *testing.T) {
					t.Parallel()
					burst(t, strategy, polls, claims)
				})
			}
		}
	}
}

func burst(t *testing.T, strategy v1alpha1.ZoneBalance, polls bool, claims int) {
	t.Helper()
	g := NewWithT(t)
	const hosts = 6
	c := &burstCluster{}
	var names []string
	for h := range hosts {
		names = append(names, fmt.Sprint("pve", h+1))
		c.resources.Hosts = append(c.resources.Hosts, proxmox.HostRow{Name: names[h], Online: true, CPUs: 64, MemoryBytes: 257 * gib})
	}
	i, err := inventory.New([]proxmox.Client{c}, inventory.Options{})
	g.Expect(err).NotTo(HaveOccurred())
	poll := func() {
		g.Expect(i.Refresh(t.Context(), "r")).To(Succeed())
	}
	poll()

	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		byHost = map[string]int{}
		vmids  = map[int]bool{}
	)
	for n := range claims {
		all.Go(func() {
			r, err := chooseAndReserve(i, placement.Request{ClaimUID: fmt.Sprint("claim-", n), NodePool: "p", Strategy: strategy,
				Options: []placement.Option{{InstanceType: "t", Need: need(4, 16), Zones: zones(names...)}}})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			byHost[r.Host]++
			g.Expect(vmids[r.VMID]).To(BeFalse())
			vmids[r.VMID] = true
			mu.Unlock()
			c.addVM(r)
			if polls && n%5 == 0 {
				poll()
			}
		})
	}
	all.Wait()
	fewest, most := claims, 0
	for _, name := range names {
		fewest, most = min(fewest, byHost[name]), max(most, byHost[name])
	}
	g.Expect(most-fewest).To(BeNumerically("<=", 1), "the Hosts got %v, want them to differ by at most one", byHost)
}

func chooseAndReserve(i *inventory.Inventory, request placement.Request) (inventory.Reservation, error) {
	return i.Ledger().Reserve(request.ClaimUID, func(v inventory.View) (inventory.Reservation, error) {
		p, err := placement.Choose(v, request)
		if err != nil {
			return inventory.Reservation{}, err
		}
		vmid, err := placement.PickVMID(v, p.Zone.Region, request.ClaimUID, placement.Range{From: 30000, To: 30099})
		return inventory.Reservation{NodePool: request.NodePool, Region: p.Zone.Region, Host: p.Zone.Host, VMID: vmid,
			Amount: inventory.Amount{CPUs: p.Need.CPUs, MemoryBytes: p.Need.MemoryBytes}}, err
	})
}
