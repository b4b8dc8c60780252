// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Users of Proxmox can write such lists into the options and notes of their VMs.
func TestParseCPUsLimits(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const all = "0-999999999999"
	g.Expect(proxmox.ParseNUMACell("cpus=" + all + ",hostnodes=" + all + ",memory=1")).
		To(Equal(proxmox.NUMACell{CPUs: cpuset.New(), HostCells: cpuset.New(), MemoryMiB: 1}))
	g.Expect(proxmox.VMConfig{Options: map[string]string{"affinity": all}}.Compute().Affinity().IsEmpty()).To(BeTrue())
	_, err := proxmox.ParseCPUs(all)
	g.Expect(err).To(MatchError(`found "0-999999999999", want a list of CPUs up to 16383, such as 0-3,8`))
}

// Lists are parsed as the kubelet's library parses them, and their size is limited.
func FuzzParseCPUs(f *testing.F) {
	for _, seed := range []string{"", "0", "0-3,8", "3-0", "0-99999999999", "0-16383,0-16383", "9223372036854775807", "-1", "+1", "1-", ",", "0x1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		set, err := proxmox.ParseCPUs(list)
		if err != nil {
			if !set.IsEmpty() {
				t.Errorf("%q: returned %s with %v", list, set, err)
			}
			return
		}
		if set.Size() > 1<<14 {
			t.Errorf("%.40q has %d CPUs", list, set.Size())
		}
		if want, err := cpuset.Parse(list); err != nil || !set.Equals(want) {
			t.Errorf("%q was read as %s, want %s (%v)", list, set, want, err)
		}
		if again, err := proxmox.ParseCPUs(set.String()); err != nil || !again.Equals(set) {
			t.Errorf("%s was read as %s (%v)", set, again, err)
		}
	})
}

// A NUMA cell is read again from what was written.
func FuzzNUMACell(f *testing.F) {
	f.Add("cpus=0-3;8,hostnodes=1,memory=4096,policy=bind")
	f.Add("cpus=0-99999999999,hostnodes=0-1,memory=-5")
	f.Fuzz(func(t *testing.T, value string) {
		cell := proxmox.ParseNUMACell(value)
		if again := proxmox.ParseNUMACell(cell.Encode()); again.Encode() != cell.Encode() || again.MemoryMiB != cell.MemoryMiB {
			t.Errorf("%q was read as %q, then as %q", value, cell.Encode(), again.Encode())
		}
	})
}
