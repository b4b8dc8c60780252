// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ownership_test

import (
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// The files are notes written by releases, which stay on existing VMs. Never edit a
// file; add a file for a new format.
func TestReadFormats(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]ownership.Mark{
		"vm-v1.txt": {
			Version: 1, VMID: 20123, KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", Name: "default-abc",
			ClaimUID: "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11", CPUs: "2-3,34-35", Pin: []int{2, 34}, Hooks: []string{"announce"},
		},
		"vm-v1-notes.txt": {
			Version: 1, VMID: 20123, KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", Name: "default-abc",
			ClaimUID: "5f1d4d7a-3f0a-4e0c-9d83-9f0c1f7a0b11", Source: &ownership.Source{Host: "pve1", VMID: 9000, Image: "4711"},
		},
		"template-v1.txt": {
			Version: 1, VMID: 1000, KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", Name: "ubuntu",
			TemplateUID: "0b9c3f8e-0000-4000-8000-000000000002", Generation: "4711", Hash: "4712", HashVersion: "v2", Settings: "42", Pool: "karpenter",
		},
		"builder-v1.txt": {
			Version: 1, VMID: 1000, KubeCluster: "7c0e0a53-0000-4000-8000-000000000001", Name: "ubuntu",
			TemplateUID: "0b9c3f8e-0000-4000-8000-000000000002", Generation: "4711", Hash: "4711", HashVersion: "v2",
			Builder: &ownership.Builder{
				BootDrive: "local:iso/karpenter-builder-8fe70642-1000.iso", Attempt: 2, Failure: "it was stopped",
				Started: time.Date(2026, 11, 16, 15, 0, 0, 0, time.UTC), Failed: time.Date(2026, 11, 16, 15, 30, 0, 0, time.UTC),
			},
		},
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			notes, err := os.ReadFile("testdata/formats/" + file)
			g.Expect(err).NotTo(HaveOccurred())
			mark, ok := ownership.Read(string(notes))
			g.Expect(ok).To(BeTrue())
			g.Expect(mark).To(Equal(want))
			g.Expect(mark.Newer()).To(BeFalse())
			g.Expect(mark.Notes(string(notes))).To(Equal(string(notes)), "an older controller must read what this one writes")
		})
	}
}

func TestReadNewerMark(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	mark, ok := ownership.Read(`<!-- karpenter.proxmox.sinextra.dev {"v":2,"vmid":20123,"cluster":"c","claim":"u","cpus":"2-3","pin":{"0":2},"name":["x"],"later":{"a":1}} -->`)
	g.Expect(ok).To(BeTrue(), "fields whose type changed are ignored")
	g.Expect(mark).To(Equal(ownership.Mark{Version: 2, VMID: 20123, KubeCluster: "c", ClaimUID: "u", CPUs: "2-3"}))
	g.Expect(mark.Newer()).To(BeTrue())

	mark, ok = ownership.Read(`<!-- karpenter.proxmox.sinextra.dev {"v":1,"vmid":20123,"cluster":"c","claim":"u","later":{"a":1}} -->`)
	g.Expect(ok).To(BeTrue(), "a field may be added within a version")
	g.Expect(mark.Newer()).To(BeFalse())
}
