// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestNUMACell(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cell := proxmox.NUMACell{CPUs: cpuset.New(0, 1, 2, 3, 8), HostCells: cpuset.New(1), MemoryMiB: 4096, Policy: proxmox.PolicyBind}
	g.Expect(cell.Encode()).To(Equal("cpus=0-3;8,hostnodes=1,memory=4096,policy=bind"), "a comma would end the list")
	g.Expect(proxmox.ParseNUMACell(cell.Encode())).To(Equal(cell))
	g.Expect(proxmox.NUMACell{CPUs: cpuset.New(0), MemoryMiB: 512}.Encode()).To(Equal("cpus=0,memory=512"))
	g.Expect(proxmox.ParseNUMACell("cpus=x,hostnodes=,memory=y")).To(Equal(proxmox.NUMACell{CPUs: cpuset.New(), HostCells: cpuset.New()}))
}

func TestCompute(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cfg := proxmox.VMConfig{Options: map[string]string{
		"numa": "1", "numa1": "cpus=2-3,hostnodes=2;4-5,memory=1024,policy=interleave", "numa0": "cpus=0-1,memory=1024",
		"affinity": "4-7,36-39", "hugepages": "1024", "hookscript": "local:snippets/pve-hook",
	}}
	g.Expect(cfg.Compute().NUMASlots()).To(Equal([]string{"numa0", "numa1"}))
	g.Expect(cfg.Compute().NUMACells()).To(HaveLen(2))
	g.Expect(cfg.Compute().NUMACells()[1].HostCells.List()).To(Equal([]int{2, 4, 5}))
	g.Expect(cfg.Compute().Affinity().List()).To(Equal([]int{4, 5, 6, 7, 36, 37, 38, 39}))
	g.Expect(cfg.Compute().Hugepages()).To(Equal("1024"))
	g.Expect(cfg.Options["hookscript"]).To(Equal("local:snippets/pve-hook"))

	cfg.Options["numa"], cfg.Options["affinity"] = "0", "nonsense"
	g.Expect(cfg.Compute().NUMACells()).To(BeEmpty(), "Proxmox ignores numaN without numa")
	g.Expect(cfg.Compute().NUMASlots()).To(HaveLen(2), "but they are there")
	g.Expect(cfg.Compute().Affinity().IsEmpty()).To(BeTrue())
}
