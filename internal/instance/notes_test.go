// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// The file is also one of the formats that all releases must read.
func TestDescription(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	want, err := os.ReadFile("../ownership/testdata/formats/vm-v1-notes.txt")
	g.Expect(err).NotTo(HaveOccurred())
	id := Identity{VMID: 20123, KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", ClaimUID: "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"}
	notes := NewNotes("default-abc", "default", "default", Intent{
		InstanceType: "t1.2VCPU-6GB", CapacityType: "on-demand", Cores: 2, MemoryMiB: 6144, DiskBytes: 30 << 30, Price: 0.061442,
	})
	text := Description(id, notes, nil, nil)
	g.Expect(text).To(Equal(string(want)))
	g.Expect(len(text)).To(BeNumerically("<", 8192), "Proxmox refuses longer notes")
	owns, why := id.Owns(proxmox.VMConfig{Options: map[string]string{"description": text}})
	g.Expect(owns).To(BeTrue(), why)

	notes.Price = 0
	g.Expect(strings.Contains(Description(id, notes, nil, nil), "Price")).To(BeFalse(), "it is unknown")
}
