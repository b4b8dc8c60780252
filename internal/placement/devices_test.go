// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// gpus adds devices of a Host to a mapping of region r.
func (env *testEnv) gpus(mapping, host string, paths ...string) {
	all := env.mappings["r"]
	n := slices.IndexFunc(all, func(m proxmox.PCIMapping) bool { return m.ID == mapping })
	if n < 0 {
		all, n = append(all, proxmox.PCIMapping{ID: mapping}), len(all)
	}
	for _, path := range paths {
		all[n].Devices = append(all[n].Devices, proxmox.PCIDevice{Host: host, Path: path})
	}
	env.mappings["r"] = all
}

// passThrough configures devices of a guest.
func (env *testEnv) passThrough(vmid int, devices ...string) {
	options := map[string]string{}
	for n, device := range devices {
		options[fmt.Sprint("hostpci", n)] = device
	}
	env.configs[vmid] = &proxmox.VMConfig{Options: options}
}

func gpu(count int, mappings ...string) placement.Need {
	return placement.Need{CPUs: 1, MemoryBytes: gib, Devices: []placement.DeviceNeed{{Resource: "nvidia.com/gpu", Mappings: mappings, Count: count}}}
}

func TestFitDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	env := newEnv()
	env.host("r", "pve1", 32, 64)
	env.host("r", "pve2", 32, 64)
	env.gpus("a100", "pve1", "0000:01:00.0", "0000:02:00.0")
	env.gpus("t4", "pve1", "0000:41:00", "0000:42:00")
	env.guest("r", "pve1", 100, 1, 1)
	env.passThrough(100, "0000:01:00.0,pcie=1", "42:00.0") // a foreign guest, by address
	for name, c := range map[string]struct {
		host string
		need placement.Need
		want string
	}{
		"last_device":              {"pve1", gpu(1, "a100"), ""},
		"too_many":                 {"pve1", gpu(2, "a100"), "pve1: 1 nvidia.com/gpu free (mapping a100), 2 requested"},
		"two_mappings":             {"pve1", gpu(2, "a100", "t4"), ""},
		"too_many_of_two_mappings": {"pve1", gpu(3, "a100", "t4"), "pve1: 2 nvidia.com/gpu free (mapping a100 or t4), 3 requested"},
		"another_host":             {"pve2", gpu(1, "a100"), "pve2: no device of mapping a100, or the token lacks Mapping.Use on /mapping/pci"},
	} {
		_, reason := placement.Fit(env.view(), zone(c.host), c.need)
		g.Expect(reason).To(Equal(c.want), name)
	}
	g.Expect(placement.Choose(env.view(), requestFor(gpu(2, "a100", "t4"), "pve1", "pve2"))).To(HaveField("Devices", []string{"a100", "t4"}))
}

// TestChooseDevicesProperties places VMs until nothing fits, in many environments whose
// mappings may share devices, and starts them with any device that Proxmox could choose:
// each must find a free one.
func TestChooseDevicesProperties(t *testing.T) {
	t.Parallel()
	placed, refused := 0, 0
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 7))
		env := newEnv()
		env.host("r", "pve1", 64, 64)
		devices := map[string][]string{}
		shared := rng.IntN(2) == 0
		for n := range 1 + rng.IntN(6) {
			path := fmt.Sprintf("0000:%02x:00.0", n+1)
			for m := range 1 + rng.IntN(2) {
				mapping := fmt.Sprint("m", (n+m)%3)
				if m > 0 && !shared {
					break
				}
				devices[mapping] = append(devices[mapping], path)
				env.gpus(mapping, "pve1", path)
			}
		}
		taken := map[string]string{} // VM by device
		for n := range 12 {
			want := fmt.Sprint("m", rng.IntN(3))
			got, err := placement.Choose(env.view(), placement.Request{ClaimUID: fmt.Sprint(n), Options: []placement.Option{{Need: gpu(1, want), Zones: zones("pve1")}}})
			if err != nil {
				refused++
				free := 0
				for _, path := range devices[want] {
					if taken[path] == "" {
						free++
					}
				}
				if !shared && free > 0 {
					t.Fatalf("seed %d: %d devices of %s are free, but %v", seed, free, want, err)
				}
				continue
			}
			placed++
			env.reserve(inventory.Reservation{ClaimUID: fmt.Sprint(n), Region: "r", Host: "pve1", VMID: 20000 + n, Devices: got.Devices})
			// Proxmox picks any free device of the mapping.
			free := slices.DeleteFunc(slices.Clone(devices[got.Devices[0]]), func(path string) bool { return taken[path] != "" })
			if len(free) == 0 {
				t.Fatalf("seed %d: VM %d has a device of %s reserved, but none is free", seed, n, got.Devices[0])
			}
			taken[free[rng.IntN(len(free))]] = fmt.Sprint(n)
		}
	}
	if placed < 500 || refused < 500 {
		t.Errorf("%d placed, %d refused: the generator is unbalanced", placed, refused)
	}
}
