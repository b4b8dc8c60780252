// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

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
		"instead_of_sockets": {8, twoCells, `{"reservedmemory": 0}`, "0: 4 16.0 [0,4 1,5]; 1: 4 8.0 [2,6 3,7]"},
		"with_reserved_CPUs": {8, twoCells, `{"reservedmemory": 0, "reservedcpus": [0]}`, "0: 3 16.0 [1,5]; 1: 4 8.0 [2,6 3,7]"},
		"cells_in_settings": {
			8, twoCells, `{"reservedmemory": 0, "threads": 2, "siblings": "adjacent", "nodes": {"0": {"cpus": "0-7", "memsize": "20Gi"}}}`, "0: 8 20.0 [0-1 2-3 4-5 6-7]",
		},
		"cells_in_settings_without_memory_and_threads": {
			8, twoCells, `{"reservedmemory": 0, "nodes": {"0": {"cpus": "0-1,4-5"}, "1": {"cpus": "2-3,6-7", "memsize": "4Gi"}}}`, "0: 4 16.0 [0,4 1,5]; 1: 4 4.0 [2,6 3,7]",
		},
		"siblings_in_settings": {8, twoCells, `{"reservedmemory": 0, "siblings": "adjacent"}`, "0: 4 16.0 [0-1 4-5]; 1: 4 8.0 [2-3 6-7]"},
		"threads_in_settings":  {4, `{"id":0,"memoryMiB":8192,"cores":["0-1","2-3"]}`, `{"reservedmemory": 0, "threads": 2}`, "0: 4 8.0 [0-1 2-3]"},
		"fewer_threads":        {8, twoCells, `{"reservedmemory": 0, "threads": 1}`, "0: 4 16.0 [0,4 1,5]; 1: 4 8.0 [2,6 3,7]"},
		"cells_and_threads_in_settings": {
			8, `{"id":0,"memoryMiB":8192,"cores":["0-1","2-3","4-5","6-7"]}`, `{"reservedmemory": 0, "threads": 2, "nodes": {"0": {"cpus": "0-3"}, "1": {"cpus": "4-7", "memsize": "4Gi"}}}`,
			"0: 4 8.0 [0-1 2-3]; 1: 4 4.0 [4-5 6-7]",
		},
		"cells_in_settings_that_split_cores": {
			8, twoCells, `{"reservedmemory": 0, "nodes": {"0": {"cpus": "0-4"}, "1": {"cpus": "5-7"}}}`, "0: 5 16.0 [0,4]; 1: 3 8.0 []",
		},
		"hybrid_cores":         {6, `{"id":0,"memoryMiB":8192,"cores":["0-1","2-3","4","5"]}`, `{"reservedmemory": 0}`, "0: 6 8.0 [0-1 2-3]"},
		"offline_CPUs":         {3, `{"id":0,"memoryMiB":8192,"cores":["0","8-9"]}`, `{"reservedmemory": 0}`, "0: 3 8.0 [8-9]"},
		"other_number_of_CPUs": {16, twoCells, `{"reservedmemory": 0}`, "0: 16 24.0 []; unnumbered"},
		"invalid":              {8, `{"id":0}`, `{"reservedmemory": 0}`, "0: 8 24.0 []; unnumbered"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topology, err := hosttopology.Read(topologyLine(test.cells), "pve1")
			h := numaHost{row: host("pve1", test.cpus, 24), info: oneSocket, settings: test.settings, published: inventory.PublishedTopology{Topology: topology}}
			if err != nil {
				h.published.Problem = err.Error()
			}
			NewWithT(t).Expect(describe(h.view(t).Cells("r", "pve1"))).To(Equal(test.want))
		})
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
	expect := func(when string, reads int, unnumbered string, cells ...int) {
		t.Helper()
		g.Expect(slices.DeleteFunc(c.takeReads("notes"), func(call string) bool { return call != "notes pve1" })).To(HaveLen(reads), when)
		accounts := i.View().Cells("r", "pve1")
		var found []int
		for _, cell := range accounts.Cells {
			found = append(found, cell.ID)
		}
		g.Expect(found).To(Equal(cells), when)
		g.Expect(accounts.Unnumbered).To(ContainSubstring(unnumbered), when)
		g.Expect(accounts.Unnumbered == "").To(Equal(unnumbered == ""), when)
	}
	refresh(t, i)
	expect("first poll", 1, "", 0, 1)
	refresh(t, i)
	expect("second poll", 0, "", 0, 1)

	c.change(func() { c.notes["pve1"] = topologyLine("") })
	for range 2 {
		clock.Step(time.Minute)
		i.Invalidate("r", inventory.FactTopology("pve1"))
		refresh(t, i)
		expect("invalid topology", 1, "the topology in the notes of host pve1 is invalid: found no cells", 0)
	}
	g.Expect(logged).To(ConsistOf(And(ContainSubstring(`"host"="pve1"`), ContainSubstring("found no cells"))))

	c.change(func() { c.resources.Hosts[0].Online, c.notes["pve1"] = false, topologyLine(twoCells) })
	refresh(t, i)
	c.change(func() { c.resources.Hosts[0].Online = true })
	refresh(t, i)
	expect("back online", 1, "", 0, 1)

	c.change(func() { c.notes["pve1"] = "Rack 7" })
	clock.Step(time.Minute)
	i.Invalidate("r", inventory.FactTopology("pve1"))
	refresh(t, i)
	expect("line removed", 1, `run "pve-hook topology --publish" on the host`, 0)
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
		i.Invalidate("r", inventory.FactTopology("pve1"))
		refresh(t, i)
	}
	NewWithT(t).Expect(c.takeCalls()).NotTo(ContainElement("notes pve1"), "the notes were read without Sys.Audit on /")
}
