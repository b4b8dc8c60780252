// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// numaHost describes a Host and its guests.
type numaHost struct {
	row          proxmox.HostRow
	info         proxmox.HostInfo
	settings     string // entry in the host settings; by default, no memory is reserved
	published    observed.PublishedTopology
	guests       []proxmox.GuestRow
	configs      map[int]*proxmox.VMConfig
	reservations map[string]inventory.Reservation
}

// twoSockets returns a Host with 16 CPUs without SMT on two sockets and 64 GiB for VMs.
func twoSockets() *numaHost {
	return &numaHost{
		row: host("pve1", 16, 64), info: proxmox.HostInfo{Sockets: 2, Cores: 16, CPUs: 16},
		settings: `{"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "8-15"}}}`,
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
	snapshot := observed.NewSnapshot(observed.Result{
		Region: "r", Taken: start, Resources: proxmox.Resources{Hosts: []proxmox.HostRow{h.row}, Guests: h.guests},
		Configs: h.configs, Hardware: map[string]proxmox.HostInfo{h.row.Name: h.info},
		Facts: &observed.Facts{Topologies: map[string]observed.PublishedTopology{h.row.Name: h.published}},
	}, nil, ownRange)
	settings := cmp.Or(h.settings, "{}")
	return viewOf(t, snapshot, `{"r": {"*": {"reservedmemory": 0}, "pve1": `+settings+`}}`, slices.Collect(maps.Values(h.reservations))...)
}

func (h *numaHost) expectCells(t *testing.T, name, want string) {
	t.Helper()
	NewWithT(t).Expect(describe(h.view(t).Cells("r", "pve1"))).To(Equal(want), name)
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
		cpus           int
		memory         int64
		sockets, cores int
		settings, want string
	}{
		"one_socket_without_SMT":           {4, 8, 1, 4, "", "0: 4 8.0 [0 1 2 3]"},
		"one_socket_with_SMT":              {8, 8, 1, 4, "", "0: 8 8.0 []; unnumbered"},
		"two_sockets_with_reserved_memory": {8, 17, 2, 8, `{"reservedmemory": "1Gi"}`, "0: 4 8.0 []; 1: 4 8.0 []; unnumbered"},
		"four_sockets":                     {8, 32, 4, 8, "", "0: 2 8.0 []; 1: 2 8.0 []; 2: 2 8.0 []; 3: 2 8.0 []; unnumbered"},
		"sockets_from_settings":            {8, 32, 0, 0, `{"sockets": 2}`, "0: 4 16.0 []; 1: 4 16.0 []; unnumbered"},
		"several_cells_per_socket_with_SMT": {
			16, 48, 1, 8, `{"nodes": {"0": {"cpus": "0-3,8-11", "memsize": "32Gi"}, "1": {"cpus": "4-7,12-15", "memsize": "16Gi"}}}`,
			"0: 8 32.0 [0,8 1,9 2,10 3,11]; 1: 8 16.0 [4,12 5,13 6,14 7,15]",
		},
		"adjacent_siblings": {4, 8, 1, 2, `{"siblings": "adjacent", "nodes": {"0": {"cpus": "0-3"}}}`, "0: 4 8.0 [0-1 2-3]"},
		"hybrid_cores":      {6, 8, 1, 4, `{"nodes": {"0": {"cpus": "0-5"}}}`, "0: 6 8.0 []; unnumbered"},
		"cell_ids_with_gaps_and_cell_without_CPUs": {
			4, 24, 2, 4, `{"nodes": {"0": {"cpus": "0,2", "memsize": "8Gi"}, "8": {"cpus": "1,3", "memsize": "8Gi"}, "252": {"cpus": "", "memsize": "8Gi"}}}`,
			"0: 2 8.0 [0 2]; 8: 2 8.0 [1 3]",
		},
		"reserved_CPUs_and_ratios": {
			8, 16, 1, 4, `{"reservedcpus": [0], "cpuratio": 2, "memoryratio": 0.5, "nodes": {"0": {"cpus": "0-7"}}}`,
			"0: 14 8.0 [1,5 2,6 3,7]",
		},
		"nothing_known": {
			8, 16, 0, 0, "", "its sockets are unknown: the token needs Sys.Audit on /nodes/pve1, or set nodes in the host settings",
		},
		"settings_of_another_host": {
			8, 16, 1, 8, `{"nodes": {"1": {"cpus": "0-15"}}}`,
			"host settings: cell 1 (nodes.1.cpus) has CPU 15, but the host has only CPUs 0-7",
		},
		"half_a_core": {
			8, 16, 1, 4, `{"nodes": {"0": {"cpus": "0-6"}}}`,
			"host settings: cell 0 (nodes.0.cpus) has 7 CPUs, which is not a multiple of the 2 threads of a core",
		},
		"unequal_sockets": {9, 16, 2, 9, "", "9 CPUs cannot be split equally over 2 sockets: set nodes in the host settings"},
	} {
		h := numaHost{row: host("pve1", test.cpus, test.memory), settings: test.settings}
		if test.sockets > 0 {
			h.info = proxmox.HostInfo{Sockets: test.sockets, Cores: test.cores, CPUs: test.cpus}
		}
		h.expectCells(t, name, test.want)
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

// topologyLine returns the line that pve-hook publishes for pve1.
func topologyLine(cells string) string {
	return `<!-- karpenter.proxmox.sinextra.dev/topology {"v":1,"host":"pve1","cells":[` + cells + `]} -->`
}

// twoCells is a socket with two cells and SMT: 8 CPUs, 24 GiB.
const twoCells = `{"id":0,"memoryMiB":16384,"cores":["0,4","1,5"],"caches":["0-1,4-5"]},{"id":1,"memoryMiB":8192,"cores":["2,6","3,7"],"caches":["2-3,6-7"]}`

func TestCellsPublishedTopology(t *testing.T) {
	t.Parallel()
	oneSocket := proxmox.HostInfo{Sockets: 1, Cores: 4, CPUs: 8}
	for name, test := range map[string]struct {
		cpus            int
		cells, settings string
		want            string
	}{
		"instead_of_sockets": {8, twoCells, "", "0: 4 16.0 [0,4 1,5]; 1: 4 8.0 [2,6 3,7]"},
		"with_reserved_CPUs": {8, twoCells, `{"reservedcpus": [0]}`, "0: 3 16.0 [1,5]; 1: 4 8.0 [2,6 3,7]"},
		"cells_in_settings": {
			8, twoCells, `{"threads": 2, "siblings": "adjacent", "nodes": {"0": {"cpus": "0-7", "memsize": "20Gi"}}}`, "0: 8 20.0 [0-1 2-3 4-5 6-7]",
		},
		"cells_in_settings_without_memory_and_threads": {
			8, twoCells, `{"nodes": {"0": {"cpus": "0-1,4-5"}, "1": {"cpus": "2-3,6-7", "memsize": "4Gi"}}}`, "0: 4 16.0 [0,4 1,5]; 1: 4 4.0 [2,6 3,7]",
		},
		"siblings_in_settings": {8, twoCells, `{"siblings": "adjacent"}`, "0: 4 16.0 [0-1 4-5]; 1: 4 8.0 [2-3 6-7]"},
		"threads_in_settings":  {4, `{"id":0,"memoryMiB":8192,"cores":["0-1","2-3"]}`, `{"threads": 2}`, "0: 4 8.0 [0-1 2-3]"},
		"fewer_threads":        {8, twoCells, `{"threads": 1}`, "0: 4 16.0 [0,4 1,5]; 1: 4 8.0 [2,6 3,7]"},
		"cells_and_threads_in_settings": {
			8, `{"id":0,"memoryMiB":8192,"cores":["0-1","2-3","4-5","6-7"]}`, `{"threads": 2, "nodes": {"0": {"cpus": "0-3"}, "1": {"cpus": "4-7", "memsize": "4Gi"}}}`,
			"0: 4 8.0 [0-1 2-3]; 1: 4 4.0 [4-5 6-7]",
		},
		"cells_in_settings_that_split_cores": {
			8, twoCells, `{"nodes": {"0": {"cpus": "0-4"}, "1": {"cpus": "5-7"}}}`, "0: 5 16.0 [0,4]; 1: 3 8.0 []",
		},
		"hybrid_cores":         {6, `{"id":0,"memoryMiB":8192,"cores":["0-1","2-3","4","5"]}`, "", "0: 6 8.0 [0-1 2-3]"},
		"offline_CPUs":         {3, `{"id":0,"memoryMiB":8192,"cores":["0","8-9"]}`, "", "0: 3 8.0 [8-9]"},
		"other_number_of_CPUs": {16, twoCells, "", "0: 16 24.0 []; unnumbered"},
		"invalid":              {8, `{"id":0}`, "", "0: 8 24.0 []; unnumbered"},
	} {
		topology, err := hosttopology.Read(topologyLine(test.cells), "pve1")
		h := numaHost{row: host("pve1", test.cpus, 24), info: oneSocket, settings: test.settings, published: observed.PublishedTopology{Topology: topology}}
		if err != nil {
			h.published.Problem = err.Error()
		}
		h.expectCells(t, name, test.want)
	}
}

// TestPublishedTopologyReads: the notes are read when a Host is first seen, after Invalidate
// and when it is back, and an invalid topology is logged once.
func TestPublishedTopologyReads(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := newCluster("r", host("pve1", 8, 24), host("pve2", 8, 24))
	c.hardware = map[string]proxmox.HostInfo{"pve1": {Sockets: 1, Cores: 4, CPUs: 8}}
	c.notes = map[string]string{"pve1": "Rack 7\n\n" + topologyLine(twoCells) + "\n"}
	var logged []string
	clock := testclock.NewFakeClock(start)
	i := newInventoryWith(t, inventory.Options{Clock: clock, Log: funcr.New(func(_, line string) {
		if strings.Contains(line, "topology") {
			logged = append(logged, line)
		}
	}, funcr.Options{})}, c)
	expect := func(when string, reads int, unnumbered string, cells int) {
		t.Helper()
		g.Expect(slices.DeleteFunc(c.takeReads("notes"), func(call string) bool { return call != "notes pve1" })).To(HaveLen(reads), when)
		accounts := i.View().Cells("r", "pve1")
		g.Expect(accounts.Cells).To(HaveLen(cells), when)
		g.Expect(accounts.Unnumbered).To(ContainSubstring(unnumbered), when)
		g.Expect(accounts.Unnumbered == "").To(Equal(unnumbered == ""), when)
	}
	refresh(t, i)
	expect("first poll", 1, "", 2)
	refresh(t, i)
	expect("second poll", 0, "", 2)

	c.change(func() { c.notes["pve1"] = topologyLine("") })
	for range 2 {
		clock.Step(time.Minute)
		i.Invalidate("r", poll.FactTopology("pve1"))
		refresh(t, i)
		expect("invalid topology", 1, "the topology in the notes of host pve1 is invalid: found no cells", 1)
	}
	g.Expect(logged).To(ConsistOf(And(ContainSubstring(`"host"="pve1"`), ContainSubstring("found no cells"))))

	c.change(func() { c.resources.Hosts[0].Online, c.notes["pve1"] = false, topologyLine(twoCells) })
	refresh(t, i)
	c.change(func() { c.resources.Hosts[0].Online = true })
	refresh(t, i)
	expect("back online", 1, "", 2)

	c.change(func() { c.notes["pve1"] = "Rack 7" })
	clock.Step(time.Minute)
	i.Invalidate("r", poll.FactTopology("pve1"))
	refresh(t, i)
	expect("line removed", 1, `run "pve-hook topology --publish" on the host`, 1)
}

// Without the privilege, Proxmox rejects the read, so it is not repeated.
func TestPublishedTopologyPrivilege(t *testing.T) {
	t.Parallel()
	c := newCluster("r", host("pve1", 8, 24))
	c.permissions = proxmox.Permissions{"/nodes": {"Sys.Audit": true}}
	i, clock := newPolled(t, c)
	c.takeCalls()
	for range 3 {
		clock.Step(time.Minute)
		i.Invalidate("r", poll.FactTopology("pve1"))
		refresh(t, i)
	}
	NewWithT(t).Expect(c.takeCalls()).NotTo(ContainElement("notes pve1"), "the notes were read without Sys.Audit on /")
}
