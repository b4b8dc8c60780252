// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hosttopology_test

import (
	"reflect"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/hosttopology"
)

const (
	opening = "<!-- karpenter.proxmox.sinextra.dev/topology "
	valid   = opening + `{"v":1,"host":"pve1","cells":[{"id":0,"memoryMiB":4096,"cores":["0,4","1,5"],"caches":["0-1,4-5"]},{"id":2,"memoryMiB":2048,"cores":["2,6","3,7"]}]} -->`
)

func topology() hosttopology.Topology {
	return hosttopology.Topology{Cells: []hosttopology.Cell{
		{ID: 0, MemoryMiB: 4096, Cores: []cpuset.CPUSet{cpuset.New(0, 4), cpuset.New(1, 5)}, Caches: []cpuset.CPUSet{cpuset.New(0, 1, 4, 5)}},
		{ID: 2, MemoryMiB: 2048, Cores: []cpuset.CPUSet{cpuset.New(2, 6), cpuset.New(3, 7)}},
	}}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ before, after string }{
		"empty":          {"", valid + "\n"},
		"text":           {"Rack 7\n\n**call** ops", "Rack 7\n\n**call** ops\n\n" + valid + "\n"},
		"same_line":      {"Rack 7\n\n" + valid + "\n", "Rack 7\n\n" + valid + "\n"},
		"earlier_line":   {opening + "{}\n\nRack 7", "\nRack 7\n\n" + valid + "\n"},
		"invalid_line":   {"Rack 7\n" + opening + "oops\nmore", "Rack 7\nmore\n\n" + valid + "\n"},
		"repeated_lines": {valid + "\n" + valid + "\nRack 7", "Rack 7\n\n" + valid + "\n"},
		"ownership_mark": {`<!-- karpenter.proxmox.sinextra.dev {"v":1} -->`, `<!-- karpenter.proxmox.sinextra.dev {"v":1} -->` + "\n\n" + valid + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			got := topology().Notes(test.before, "pve1")
			g.Expect(got).To(Equal(test.after))
			g.Expect(topology().IsPublished(got, "pve1")).To(BeTrue())
			g.Expect(topology().IsPublished(got, "pve2")).To(BeFalse())
			g.Expect(hosttopology.Read(got, "pve1")).To(HaveValue(Equal(topology())))
		})
	}
}

func TestReadAbsent(t *testing.T) {
	t.Parallel()
	for _, notes := range []string{"", "Rack 7", `<!-- karpenter.proxmox.sinextra.dev {"v":1} -->`} {
		g := NewWithT(t)
		g.Expect(hosttopology.Read(notes, "pve1")).To(BeNil(), notes)
		g.Expect(hosttopology.HasLine(notes)).To(BeFalse(), notes)
	}
}

func TestReadInvalid(t *testing.T) {
	t.Parallel()
	cells := func(cells string) string { return opening + `{"v":1,"host":"pve1","cells":[` + cells + `]} -->` }
	for name, test := range map[string]struct{ notes, want string }{
		"two_lines":            {valid + "\n" + valid, "found 2 lines with a topology, want one"},
		"cut_off":              {valid[:60], "want a line that ends with"},
		"no_JSON":              {opening + "0-3 -->", "invalid character"},
		"newer":                {strings.Replace(valid, `"v":1`, `"v":2`, 1), "found the version 2, want 1: install the pve-hook of the controller's release"},
		"other_host":           {strings.Replace(valid, "pve1", "pve2", 1), `found the topology of host "pve2", want that of "pve1"`},
		"unknown_field":        {cells(`{"id":0,"memoryMiB":1,"cores":["0"],"threads":2}`), `unknown field "cells[0].threads"`},
		"duplicate_field":      {cells(`{"id":0,"id":1,"memoryMiB":1,"cores":["0"]}`), `duplicate field "cells[0].id"`},
		"no_cells":             {cells(""), "found no cells, want at least one"},
		"repeated_cell":        {cells(`{"id":1,"memoryMiB":1,"cores":["0"]},{"id":1,"memoryMiB":1,"cores":["1"]}`), "found the cell 1 at position 1, want IDs from 0 in ascending order"},
		"negative_cell":        {cells(`{"id":-1,"memoryMiB":1,"cores":["0"]}`), "found the cell -1 at position 0"},
		"no_memory":            {cells(`{"id":0,"cores":["0"]}`), "cell 0: found memoryMiB 0, want 1 to"},
		"no_cores":             {cells(`{"id":0,"memoryMiB":1,"cores":[]}`), "cell 0: found no cores"},
		"empty_core":           {cells(`{"id":0,"memoryMiB":1,"cores":[""]}`), "cell 0: cores: found an empty list, want CPUs"},
		"invalid_list":         {cells(`{"id":0,"memoryMiB":1,"cores":["a"]}`), `cell 0: cores: found "a", want a list of CPUs`},
		"huge_list":            {cells(`{"id":0,"memoryMiB":1,"cores":["0-999999999999"]}`), "want a list of CPUs up to"},
		"CPU_in_two_cores":     {cells(`{"id":0,"memoryMiB":1,"cores":["0,4","4"]}`), "cell 0: cores: found CPU 4 twice"},
		"CPU_in_two_cells":     {cells(`{"id":0,"memoryMiB":1,"cores":["0"]},{"id":1,"memoryMiB":1,"cores":["0-1"]}`), "cell 1: found CPUs 0 also in another cell"},
		"cache_of_other_CPUs":  {cells(`{"id":0,"memoryMiB":1,"cores":["0-1"],"caches":["0-3"]}`), "the caches and the cores have different CPUs"},
		"core_over_two_caches": {cells(`{"id":0,"memoryMiB":1,"cores":["0-1","2"],"caches":["0,2","1"]}`), "the CPUs 0-1 of a core are in different caches"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			got, err := hosttopology.Read("Rack 7\n"+test.notes+"\n", "pve1")
			g.Expect(got).To(BeNil())
			g.Expect(err).To(MatchError(ContainSubstring(test.want)))
			g.Expect(hosttopology.HasLine(test.notes)).To(BeTrue())
		})
	}
}

// A topology that was read is written to any notes and read again.
func FuzzRead(f *testing.F) {
	f.Add(valid, "Rack 7")
	f.Add(opening+`{"v":1,"host":"pve1","cells":[{"id":0,"memoryMiB":1,"cores":["0-16383"]}]} -->`, opening)
	f.Add(opening+`{"v":1e0,"host":"pve1","cells":[{"id":9223372036854775807,"memoryMiB":1,"cores":["3,1-2"]}]} -->`, "\r\n"+valid)
	f.Add(opening+`{"v":1,"host":"pve1","cells":null} --> -->`, "\n")
	f.Fuzz(func(t *testing.T, notes, text string) {
		read, err := hosttopology.Read(notes, "pve1")
		if err != nil || read == nil {
			return
		}
		written := read.Notes(text, "pve1")
		again, err := hosttopology.Read(written, "pve1")
		if err != nil || !reflect.DeepEqual(read, again) || !read.IsPublished(written, "pve1") {
			t.Errorf("%+v was written to %q and read as %+v, %v", read, written, again, err)
		}
		if twice := again.Notes(written, "pve1"); twice != written {
			t.Errorf("%q became %q when it was written again", written, twice)
		}
	})
}
