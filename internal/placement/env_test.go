// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const gib = int64(1) << 30

var own = observed.VMIDRange{From: 20000, To: 20999}

// testEnv is a set of Clusters.
type testEnv struct {
	resources    map[string]*proxmox.Resources
	reservations map[string]inventory.Reservation
	settings     declared.Settings
	// configs by VMID and mappings by region, for PCI devices.
	configs  map[int]*proxmox.VMConfig
	mappings map[string][]proxmox.PCIMapping
}

func newEnv() *testEnv {
	return &testEnv{
		resources: map[string]*proxmox.Resources{}, reservations: map[string]inventory.Reservation{},
		configs: map[int]*proxmox.VMConfig{}, mappings: map[string][]proxmox.PCIMapping{},
	}
}

func (env *testEnv) region(name string) *proxmox.Resources {
	if env.resources[name] == nil {
		env.resources[name] = &proxmox.Resources{}
	}
	return env.resources[name]
}

// host adds a Host with a storage "local" of 1000 GiB. The default settings reserve 1
// GiB of memory for the Host, which is added here.
func (env *testEnv) host(region, name string, cpus int, memoryGiB int64) {
	r := env.region(region)
	r.Hosts = append(r.Hosts, proxmox.HostRow{Name: name, Online: true, CPUs: cpus, MemoryBytes: (memoryGiB + 1) * gib})
	r.Storages = append(r.Storages, proxmox.StorageRow{
		Name: "local", Host: name, Type: "dir", Content: []string{"images", "iso"}, Available: true, TotalBytes: 1000 * gib,
	})
}

func (env *testEnv) guest(region, host string, vmid, cpus int, memoryGiB int64) {
	r := env.region(region)
	r.Guests = append(r.Guests, proxmox.GuestRow{
		VMID: vmid, Kind: proxmox.KindQEMU, Host: host, Status: "running", CPUs: cpus, MemoryBytes: memoryGiB * gib,
	})
}

func (env *testEnv) reserve(r inventory.Reservation) { env.reservations[r.ClaimUID] = r }

func parseSettings(t *testing.T, text string) declared.Settings {
	t.Helper()
	settings, err := declared.ParseSettings([]byte(text))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return settings
}

func (env *testEnv) view() inventory.View {
	snapshots := map[string]*observed.Snapshot{}
	for region, resources := range env.resources {
		snapshots[region] = observed.NewSnapshot(
			observed.Result{
				Region: region, Taken: time.Unix(0, 0), Resources: *resources, Configs: env.configs, Mappings: env.mappings[region],
			}, nil, own)
	}
	return inventory.NewView(snapshots, nil, env.reservations, env.settings, declared.Records{})
}

func zone(host string) placement.Zone { return placement.Zone{Region: "r", Host: host} }

func need(cpus int, memoryGiB int64) placement.Need {
	return placement.Need{CPUs: cpus, MemoryBytes: memoryGiB * gib}
}

// randomEnv returns an environment and a request derived from a seed.
func randomEnv(seed uint64) (*testEnv, placement.Request) {
	rng := rand.New(rand.NewPCG(seed, 1))
	env := newEnv()
	var zones []placement.Zone
	vmid := 100
	for h := range 1 + rng.IntN(6) {
		z := placement.Zone{Region: fmt.Sprintf("r%d", rng.IntN(2)), Host: fmt.Sprintf("pve%d", h)}
		env.host(z.Region, z.Host, 2+rng.IntN(15), int64(4+rng.IntN(61)))
		row := &env.region(z.Region).Hosts[len(env.region(z.Region).Hosts)-1]
		row.Online, row.Maintenance = rng.IntN(8) > 0, rng.IntN(10) == 0
		zones = append(zones, z)
		for range rng.IntN(4) {
			vmid++
			env.guest(z.Region, z.Host, vmid, 1+rng.IntN(6), int64(1+rng.IntN(16)))
		}
		for range rng.IntN(3) {
			vmid++
			env.reserve(inventory.Reservation{
				ClaimUID: fmt.Sprint("reserved-", vmid), NodePool: fmt.Sprint("p", rng.IntN(2)), Region: z.Region, Host: z.Host, VMID: vmid,
				Storage: "local", DiskBytes: int64(rng.IntN(500)) * gib,
				Amount: observed.Amount{CPUs: 1 + rng.IntN(4), MemoryBytes: int64(1+rng.IntN(8)) * gib},
			})
		}
	}
	request := placement.Request{
		ClaimUID: fmt.Sprint("claim-", rng.Uint64()),
		NodePool: fmt.Sprint("p", rng.IntN(2)),
		Strategy: []v1alpha1.ZoneBalance{"", v1alpha1.ZoneBalanceBalanced, v1alpha1.ZoneBalanceAvailabilityFirst, v1alpha1.ZoneBalancePacked}[rng.IntN(4)],
		Affinity: []v1alpha1.PoolAffinity{"", v1alpha1.PoolAffinityNone, v1alpha1.PoolAffinitySeparateHosts, v1alpha1.PoolAffinitySameHost}[rng.IntN(4)],
	}
	for o := range 1 + rng.IntN(4) {
		option := placement.Option{
			InstanceType: fmt.Sprint("type", o), Price: float64(o),
			Need: placement.Need{CPUs: 1 + rng.IntN(10), MemoryBytes: int64(1+rng.IntN(32)) * gib, DiskBytes: int64(rng.IntN(900)) * gib},
		}
		if rng.IntN(2) == 0 {
			option.Need.Storage = "local"
		}
		for _, z := range zones {
			if rng.IntN(3) > 0 {
				option.Zones = append(option.Zones, z)
			}
		}
		request.Options = append(request.Options, option)
	}
	return env, request
}

// free is the oracle's account of a Host, computed from the rows.
func (env *testEnv) free(z placement.Zone) (cpus int, memory, disk int64, usable bool) {
	for _, row := range env.resources[z.Region].Hosts {
		if row.Name == z.Host {
			cpus, memory, usable = row.CPUs, row.MemoryBytes-gib, row.Online && !row.Maintenance
		}
	}
	disk = 900 * gib
	for _, g := range env.resources[z.Region].Guests {
		if g.Host == z.Host {
			cpus, memory = cpus-g.CPUs, memory-g.MemoryBytes
		}
	}
	for _, r := range env.reservations {
		if r.Region == z.Region && r.Host == z.Host {
			cpus, memory, disk = cpus-r.CPUs, memory-r.MemoryBytes, disk-r.DiskBytes
		}
	}
	return cpus, memory, disk, usable
}

// fits is the oracle for Fit.
func (env *testEnv) fits(z placement.Zone, n placement.Need) bool {
	cpus, memory, disk, usable := env.free(z)
	return usable && n.CPUs <= cpus && n.MemoryBytes <= memory && (n.Storage == "" || n.DiskBytes <= disk)
}
