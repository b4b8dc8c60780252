// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// layout describes the files below /sys of a host.
type layout struct {
	online string
	// cells are the CPUs of each cell. A cell has 4 GiB of memory per ID, from 4 GiB.
	cells  []string
	cores  []string // CPUs of each core
	caches []string // CPUs of each last-level cache
}

var layouts = map[string]struct {
	layout
	want string
}{
	"one_socket_with_SMT": {
		layout{online: "0-3", cells: []string{"0-3"}, cores: []string{"0,2", "1,3"}, caches: []string{"0-3"}},
		`{"id":0,"memoryMiB":4096,"cores":["0,2","1,3"],"caches":["0-3"]}`,
	},
	"two_sockets_spread": {
		layout{online: "0-7", cells: []string{"0-1,4-5", "2-3,6-7"}, cores: []string{"0,4", "1,5", "2,6", "3,7"}, caches: []string{"0-1,4-5", "2-3,6-7"}},
		`{"id":0,"memoryMiB":4096,"cores":["0,4","1,5"],"caches":["0-1,4-5"]},{"id":1,"memoryMiB":8192,"cores":["2,6","3,7"],"caches":["2-3,6-7"]}`,
	},
	"adjacent_threads": {
		layout{online: "0-3", cells: []string{"0-3"}, cores: []string{"0-1", "2-3"}},
		`{"id":0,"memoryMiB":4096,"cores":["0-1","2-3"]}`,
	},
	"four_cells_with_two_caches_each": {
		layout{
			online: "0-15", cells: []string{"0-3", "4-7", "8-11", "12-15"},
			cores:  []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15"},
			caches: []string{"0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"},
		},
		`{"id":0,"memoryMiB":4096,"cores":["0","1","2","3"],"caches":["0-1","2-3"]},{"id":1,"memoryMiB":8192,"cores":["4","5","6","7"],"caches":["4-5","6-7"]},` +
			`{"id":2,"memoryMiB":12288,"cores":["8","9","10","11"],"caches":["8-9","10-11"]},{"id":3,"memoryMiB":16384,"cores":["12","13","14","15"],"caches":["12-13","14-15"]}`,
	},
	"cache_over_two_cells": {
		layout{online: "0-3", cells: []string{"0-1", "2-3"}, cores: []string{"0", "1", "2", "3"}, caches: []string{"0-3"}},
		`{"id":0,"memoryMiB":4096,"cores":["0","1"],"caches":["0-1"]},{"id":1,"memoryMiB":8192,"cores":["2","3"],"caches":["2-3"]}`,
	},
	"offline_CPUs": {
		layout{online: "0-2,5", cells: []string{"0-1,4-5", "2-3,6-7"}, cores: []string{"0,4", "1,5", "2,6", "3,7"}, caches: []string{"0-1,4-5", "2-3,6-7"}},
		`{"id":0,"memoryMiB":4096,"cores":["0","1,5"],"caches":["0-1,5"]},{"id":1,"memoryMiB":8192,"cores":["2"],"caches":["2"]}`,
	},
	"cell_without_CPUs": {
		layout{online: "0-1", cells: []string{"0-1", ""}, cores: []string{"0", "1"}},
		`{"id":0,"memoryMiB":4096,"cores":["0","1"]}`,
	},
}

// hardware writes the files of a layout.
func (m *machine) hardware(l layout) {
	m.Helper()
	m.write(cpuDir+"/online", l.online+"\n", 0o444)
	m.write(nodeDir+"/online", fmt.Sprintf("0-%d\n", len(l.cells)-1), 0o444)
	for id, cpus := range l.cells {
		dir := fmt.Sprintf("%s/node%d", nodeDir, id)
		m.write(dir+"/cpulist", cpus+"\n", 0o444)
		m.write(dir+"/meminfo", fmt.Sprintf("\nNode %d MemTotal:       %d kB\nNode %d MemFree:        1 kB\n", id, (id+1)<<22+1023, id), 0o444)
	}
	each := func(sets []string, file func(cpu int, set string)) {
		for _, set := range sets {
			cpus, err := proxmox.ParseCPUs(set)
			NewWithT(m).Expect(err).NotTo(HaveOccurred())
			for _, cpu := range cpus.List() {
				file(cpu, set)
			}
		}
	}
	each(l.cores, func(cpu int, set string) {
		m.write(fmt.Sprintf("%s/cpu%d/topology/thread_siblings_list", cpuDir, cpu), set+"\n", 0o444)
	})
	each(l.caches, func(cpu int, set string) {
		for index, cache := range [][2]string{{"1", fmt.Sprint(cpu)}, {"3", set}, {"2", fmt.Sprint(cpu)}} {
			dir := fmt.Sprintf("%s/cpu%d/cache/index%d", cpuDir, cpu, index)
			m.write(dir+"/level", cache[0]+"\n", 0o444)
			m.write(dir+"/shared_cpu_list", cache[1]+"\n", 0o444)
		}
	})
}

func lineOf(cells string) string {
	return `<!-- karpenter.proxmox.sinextra.dev/topology {"v":1,"host":"pve1","cells":[` + cells + `]} -->`
}

func TestTopology(t *testing.T) {
	t.Parallel()
	for name, test := range layouts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			m := newMachine(t)
			m.hardware(test.layout)
			out := m.publishesTo(nil)
			g.Expect(m.Host.Run(t.Context(), []string{"topology"})).To(Succeed())
			g.Expect(out.String()).To(Equal(lineOf(test.want) + "\n"))
		})
	}
}

// notes are the notes of the host in Proxmox. Proxmox changes their digest with each write.
type notes struct {
	text   string
	writes int
	err    error
}

func (n *notes) pvesh(_ context.Context, args ...string) ([]byte, error) {
	if n == nil {
		return nil, errors.New("unexpected call of pvesh")
	}
	digest := fmt.Sprintf("digest-%d", n.writes)
	switch {
	case n.err != nil:
		return nil, n.err
	case slices.Equal(args, []string{"get", "/nodes/pve1/config", "--output-format", "json"}):
		return json.Marshal(map[string]string{"description": n.text, "digest": digest})
	case len(args) == 6 && slices.Equal(args[:3], []string{"set", "/nodes/pve1/config", "--description"}) && slices.Equal(args[4:], []string{"--digest", digest}):
		n.text, n.writes = args[3], n.writes+1
		return nil, nil
	}
	return nil, fmt.Errorf("unexpected arguments %q", args)
}

// publishesTo connects the machine with the notes of its host and returns its output.
func (m *machine) publishesTo(n *notes) *bytes.Buffer {
	out := &bytes.Buffer{}
	m.Name, m.Out, m.Pvesh = "pve1", out, n.pvesh
	return out
}

func TestTopologyPublish(t *testing.T) {
	t.Parallel()
	g, m, test := NewWithT(t), newMachine(t), layouts["two_sockets_spread"]
	m.hardware(test.layout)
	n := &notes{text: "Rack 7: call ops"}
	m.publishesTo(n)
	want := "Rack 7: call ops\n\n" + lineOf(test.want) + "\n"
	for range 2 { // the second time, nothing has changed
		g.Expect(m.Host.Run(t.Context(), []string{"topology", "--publish"})).To(Succeed())
		g.Expect(n.text).To(Equal(want))
		g.Expect(n.writes).To(BeEquivalentTo(1))
	}
}

func TestTopologyFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args    []string
		prepare func(*machine, *notes)
		want    string
	}{
		"unknown_option":  {[]string{"--write"}, nil, `found the arguments ["--write"], want topology or topology --publish`},
		"not_root":        {[]string{"--publish"}, func(_ *machine, n *notes) { n.err = errors.New("please run as root") }, "reading the notes of the host: please run as root"},
		"no_cells":        {nil, func(m *machine, _ *notes) { _ = os.Remove(m.path(nodeDir + "/online")) }, "no such file"},
		"no_memory":       {nil, func(m *machine, _ *notes) { m.write(nodeDir+"/node0/meminfo", "", 0o644) }, "node0/meminfo has no MemTotal"},
		"unknown_format":  {nil, func(m *machine, _ *notes) { m.write(nodeDir+"/node0/cpulist", "all", 0o644) }, `node0/cpulist: found "all"`},
		"core_is_unknown": {nil, func(m *machine, _ *notes) { _ = os.RemoveAll(m.path(cpuDir + "/cpu1/topology")) }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			m, n := newMachine(t), &notes{}
			m.hardware(layouts["four_cells_with_two_caches_each"].layout)
			_ = os.Chmod(m.path(nodeDir+"/node0/meminfo"), 0o644)
			_ = os.Chmod(m.path(nodeDir+"/node0/cpulist"), 0o644)
			m.publishesTo(n)
			if test.prepare != nil {
				test.prepare(m, n)
			}
			g.Expect(m.Host.Run(t.Context(), append([]string{"topology"}, test.args...))).To(MatchError(ContainSubstring(test.want)))
			g.Expect(n.writes).To(BeZero())
		})
	}
}

// Before a VM starts, a topology that was published is updated. The notes of a host without one are not changed, and a failure
// does not prevent the start.
func TestTopologyBeforeStart(t *testing.T) {
	t.Parallel()
	test := layouts["one_socket_with_SMT"]
	line := lineOf(test.want)
	for name, c := range map[string]struct {
		notes  string
		err    error
		phase  string
		writes int
		log    string
	}{
		"changed":      {"Rack 7\n" + lineOf(""), nil, preStart, 1, "published the topology"},
		"invalid":      {"<!-- karpenter.proxmox.sinextra.dev/topology", nil, preStart, 1, "published the topology"},
		"current":      {"100 %: Rack 7\n\n" + line, nil, preStart, 0, ""},
		"no_topology":  {"Rack 7", nil, preStart, 0, ""},
		"no_notes":     {"", nil, preStart, 0, ""},
		"failure":      {lineOf(""), errors.New("no quorum"), preStart, 0, "publishing the topology of the host failed: reading the notes of the host: no quorum"},
		"after_a_stop": {lineOf(""), nil, "post-stop", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, m, n := NewWithT(t), newMachine(t), &notes{text: c.notes, err: c.err}
			m.hardware(test.layout)
			m.vm(owned(ownership.Mark{}))
			m.publishesTo(n)
			if c.notes != "" {
				m.write("/etc/pve/nodes/pve1/config", confOf(c.notes), 0o640)
			}
			g.Expect(m.run(c.phase)).To(Succeed())
			g.Expect(n.writes).To(Equal(c.writes))
			if c.writes > 0 {
				g.Expect(n.text).To(ContainSubstring(line))
			}
			g.Expect(m.log.String()).To(ContainSubstring(c.log))
			g.Expect(m.log.Len() > 0).To(Equal(c.log != ""))
		})
	}
}
