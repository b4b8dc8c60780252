// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// numaHost describes a Host and its guests.
type numaHost struct {
	row          proxmox.HostRow
	info         proxmox.HostInfo
	settings     string // entry in the host settings
	published    inventory.PublishedTopology
	guests       []proxmox.GuestRow
	configs      map[int]*proxmox.VMConfig
	reservations map[string]inventory.Reservation
}

// twoSockets returns a Host with 16 CPUs without SMT on two sockets and 64 GiB for VMs.
func twoSockets() *numaHost {
	return &numaHost{
		row: host("pve1", 16, 64), info: proxmox.HostInfo{Sockets: 2, Cores: 16, CPUs: 16},
		settings: `{"reservedmemory": 0, "nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "8-15"}}}`,
		configs:  map[int]*proxmox.VMConfig{}, reservations: map[string]inventory.Reservation{},
	}
}

func (h *numaHost) guest(row proxmox.GuestRow, options ...string) {
	h.guests = append(h.guests, row)
	c := config(options...)
	h.configs[row.VMID] = &c
}

func (h *numaHost) view(t *testing.T) inventory.View {
	t.Helper()
	settings := inventory.Settings{}
	if h.settings != "" {
		var err error
		if settings, err = inventory.ParseSettings([]byte(`{"r": {"*": ` + h.settings + `}}`)); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := inventory.NewSnapshot(inventory.PollResult{
		Region: "r", Taken: start, Resources: proxmox.Resources{Hosts: []proxmox.HostRow{h.row}, Guests: h.guests},
		Configs: h.configs, Hardware: map[string]proxmox.HostInfo{h.row.Name: h.info},
		Facts: &inventory.Facts{Topologies: map[string]inventory.PublishedTopology{h.row.Name: h.published}},
	}, nil, ownRange)
	return inventory.NewView(map[string]*inventory.Snapshot{"r": snapshot}, nil, h.reservations, settings)
}

// describe formats each cell as "ID: free vCPUs, free GiB, free cores".
func describe(a *inventory.CellAccounts) string {
	if a.Problem != "" {
		return a.Problem
	}
	var lines []string
	for _, cell := range a.Cells {
		cores := make([]string, 0, len(cell.FreeCores))
		for _, core := range cell.FreeCores {
			cores = append(cores, core.String())
		}
		lines = append(lines, fmt.Sprintf("%d: %d %.1f [%s]", cell.ID, cell.FreeCPUs(0), float64(cell.FreeMemoryBytes)/float64(gib), strings.Join(cores, " ")))
	}
	if a.Unnumbered != "" {
		lines = append(lines, "unnumbered")
	}
	return strings.Join(lines, "; ")
}

func TestCellsTopology(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cpus     int
		memory   int64
		info     proxmox.HostInfo
		settings string
		want     string
	}{
		"one_socket_without_SMT":           {4, 8, proxmox.HostInfo{Sockets: 1, Cores: 4, CPUs: 4}, `{"reservedmemory": 0}`, "0: 4 8.0 [0 1 2 3]"},
		"one_socket_with_SMT":              {8, 8, proxmox.HostInfo{Sockets: 1, Cores: 4, CPUs: 8}, `{"reservedmemory": 0}`, "0: 8 8.0 []; unnumbered"},
		"two_sockets_with_reserved_memory": {8, 17, proxmox.HostInfo{Sockets: 2, Cores: 8, CPUs: 8}, "", "0: 4 8.0 []; 1: 4 8.0 []; unnumbered"},
		"four_sockets": {
			8, 32, proxmox.HostInfo{Sockets: 4, Cores: 8, CPUs: 8}, `{"reservedmemory": 0}`,
			"0: 2 8.0 []; 1: 2 8.0 []; 2: 2 8.0 []; 3: 2 8.0 []; unnumbered",
		},
		"sockets_from_settings": {8, 32, proxmox.HostInfo{}, `{"reservedmemory": 0, "sockets": 2}`, "0: 4 16.0 []; 1: 4 16.0 []; unnumbered"},
		"several_cells_per_socket_with_SMT": {
			16, 48, proxmox.HostInfo{Sockets: 1, Cores: 8, CPUs: 16},
			`{"reservedmemory": 0, "nodes": {"0": {"cpus": "0-3,8-11", "memsize": "32Gi"}, "1": {"cpus": "4-7,12-15", "memsize": "16Gi"}}}`,
			"0: 8 32.0 [0,8 1,9 2,10 3,11]; 1: 8 16.0 [4,12 5,13 6,14 7,15]",
		},
		"adjacent_siblings": {
			4, 8, proxmox.HostInfo{Sockets: 1, Cores: 2, CPUs: 4},
			`{"reservedmemory": 0, "siblings": "adjacent", "nodes": {"0": {"cpus": "0-3"}}}`, "0: 4 8.0 [0-1 2-3]",
		},
		"hybrid_cores": {
			6, 8, proxmox.HostInfo{Sockets: 1, Cores: 4, CPUs: 6}, `{"reservedmemory": 0, "nodes": {"0": {"cpus": "0-5"}}}`, "0: 6 8.0 []; unnumbered",
		},
		"cell_ids_with_gaps_and_cell_without_CPUs": {
			4, 24, proxmox.HostInfo{Sockets: 2, Cores: 4, CPUs: 4},
			`{"reservedmemory": 0, "nodes": {"0": {"cpus": "0,2", "memsize": "8Gi"}, "8": {"cpus": "1,3", "memsize": "8Gi"}, "252": {"cpus": "", "memsize": "8Gi"}}}`,
			"0: 2 8.0 [0 2]; 8: 2 8.0 [1 3]",
		},
		"reserved_CPUs_and_ratios": {
			8, 16, proxmox.HostInfo{Sockets: 1, Cores: 4, CPUs: 8},
			`{"reservedmemory": 0, "reservedcpus": [0], "cpuratio": 2, "memoryratio": 0.5, "nodes": {"0": {"cpus": "0-7"}}}`, "0: 14 8.0 [1,5 2,6 3,7]",
		},
		"nothing_known": {
			8, 16, proxmox.HostInfo{}, "", "its sockets are unknown: the token needs Sys.Audit on /nodes/pve1, or set nodes in the host settings",
		},
		"settings_of_another_host": {
			8, 16, proxmox.HostInfo{Sockets: 1, Cores: 8, CPUs: 8}, `{"nodes": {"1": {"cpus": "0-15"}}}`,
			"host settings: cell 1 (nodes.1.cpus) has CPU 15, but the host has only CPUs 0-7",
		},
		"half_a_core": {
			8, 16, proxmox.HostInfo{Sockets: 1, Cores: 4, CPUs: 8}, `{"nodes": {"0": {"cpus": "0-6"}}}`,
			"host settings: cell 0 (nodes.0.cpus) has 7 CPUs, which is not a multiple of the 2 threads of a core",
		},
		"unequal_sockets": {
			9, 16, proxmox.HostInfo{Sockets: 2, Cores: 9, CPUs: 9}, "", "9 CPUs cannot be split equally over 2 sockets: set nodes in the host settings",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := numaHost{row: host("pve1", test.cpus, test.memory), info: test.info, settings: test.settings}
			NewWithT(t).Expect(describe(h.view(t).Cells("r", "pve1"))).To(Equal(test.want))
		})
	}
}

func TestCellsUnknownHost(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.Expect(twoSockets().view(t).Cells("r", "pve9").Problem).To(Equal("region r has no such host"))
	g.Expect((inventory.View{}).Cells("r", "pve1").Problem).NotTo(BeEmpty(), "the zero View has a Host")
}

// TestHardwareReads: hardware is read once, after the number of CPUs changed, and after a
// delay if the Host reported nothing.
func TestHardwareReads(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 8, 16), host("pve2", 8, 16))
	c.hardware = map[string]proxmox.HostInfo{"pve1": {Sockets: 2, Cores: 8, CPUs: 8}}
	i, clock := newInventory(t, c)
	read := func() int { return len(c.takeReads("hardware")) }
	refresh(t, i)
	g.Expect(read()).To(BeEquivalentTo(2))
	g.Expect(i.View().Cells("r", "pve1").Cells).To(HaveLen(2))
	refresh(t, i)
	g.Expect(read()).To(BeZero())
	c.change(func() {
		c.resources.Hosts[0].CPUs = 16
		c.hardware["pve1"] = proxmox.HostInfo{Sockets: 4, Cores: 16, CPUs: 16}
	})
	clock.Step(11 * time.Minute)
	refresh(t, i)
	g.Expect(read()).To(Equal(2), "the changed host and the one without hardware")
	g.Expect(i.View().Cells("r", "pve1").Cells).To(HaveLen(4))
}
