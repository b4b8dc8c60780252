// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// The file is also one of the formats that all releases must read.
func TestDescription(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	want, err := os.ReadFile("../ownership/testdata/formats/vm-v1-notes.txt")
	g.Expect(err).NotTo(HaveOccurred())
	id := Identity{VMID: 20123, ClaimName: "default-abc", KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", ClaimUID: "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"}
	notes := NewNotes("default-abc", "default", "default", Intent{
		InstanceType: "t1.2VCPU-6GB", CapacityType: "on-demand", Cores: 2, MemoryMiB: 6144, DiskBytes: 30 << 30, Price: 0.061442,
	})
	text := Description(NewMark(id, Intent{TemplateHost: "pve1", TemplateID: 9000, ImageID: "4711"}, nil), notes)
	g.Expect(text).To(Equal(string(want)))
	g.Expect(len(text)).To(BeNumerically("<", 8192), "Proxmox refuses longer notes")
	owns, why := id.Owns(proxmox.VMConfig{Options: map[string]string{"description": text}})
	g.Expect(owns).To(BeTrue(), why)

	notes.Price = 0
	g.Expect(strings.Contains(Description(NewMark(id, Intent{}, nil), notes), "Price")).To(BeFalse(), "it is unknown")
}

// Proxmox refuses notes of more than 8192 characters.
func TestDescriptionLongest(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	in := Intent{
		Host: strings.Repeat("h", 63), TemplateHost: strings.Repeat("t", 63), TemplateID: 999999999, ImageID: strings.Repeat("i", 40), Machine: strings.Repeat("m", 63),
		Binding: &Binding{}, HA: &v1alpha1.HighAvailability{Group: strings.Repeat("g", 63)}, ResourcePool: strings.Repeat("p", 63), DiskBytes: 1 << 50,
	}
	var cpus, hooks []string
	for n := range 128 {
		in.Binding.Pin = append(in.Binding.Pin, 2*n+100)
		cpus = append(cpus, fmt.Sprint(2*n+100)) // every other CPU
	}
	in.Binding.CPUs = strings.Join(cpus, ",")
	for n := range 10 {
		hooks = append(hooks, fmt.Sprintf("%02d%s", n, strings.Repeat("x", 61)))
		in.HA.Rules = append(in.HA.Rules, fmt.Sprintf("%02d%s", n, strings.Repeat("r", 30)))
	}
	notes := NewNotes("default-abc", "default", "default", in)
	notes.Description = strings.Repeat("d", maxDescription)
	id := Identity{VMID: 999999999, KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", ClaimUID: "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11"}
	text := Description(NewMark(id, in, hooks), notes)
	mark, ok := ownership.Read(text)
	g.Expect(ok).To(BeTrue())
	mark.Applied = new(NewApplied(&v1alpha1.ProxmoxNodeClass{}, in))
	g.Expect(len(mark.Notes(text))).To(BeNumerically("<=", 8192))
}
