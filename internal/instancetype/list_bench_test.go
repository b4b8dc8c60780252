// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	benchHosts   = 100
	benchTypes   = 60
	benchClasses = 5
)

// newBigProvider returns a provider with 100 Hosts, 60 types and 5 NodeClasses.
func newBigProvider(b *testing.B) (*instancetype.Provider, *viewer, []*v1alpha1.ProxmoxNodeClass) {
	b.Helper()
	g := NewWithT(b)
	v := &viewer{resources: map[string]*proxmox.Resources{}, configs: map[int]*proxmox.VMConfig{}}
	var selected []string
	for h := range benchHosts {
		name := fmt.Sprintf("pve%d", h)
		v.addHost("east", name, 900+h, "host")
		selected = append(selected, fmt.Sprintf("east/%s/%d", name, 900+h))
	}
	v.publish()
	var types []instancetype.Type
	for n := range benchTypes {
		types = append(types, instancetype.Type{Name: fmt.Sprintf("t%d", n), Family: "t", CPUs: 1 + n%16, MemoryBytes: int64(1+n) * gib, Pods: 110, EphemeralBytes: 30 * gib})
	}
	catalog, err := instancetype.NewCatalog(types)
	g.Expect(err).NotTo(HaveOccurred())
	p, err := instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Catalog: catalog})
	g.Expect(err).NotTo(HaveOccurred())
	var classes []*v1alpha1.ProxmoxNodeClass
	for n := range benchClasses {
		class := newNodeClass(selected...)
		class.Name = fmt.Sprint("class", n)
		for h := range v1alpha1.MaxMemoryOverheads {
			learned := v1alpha1.MemoryOverhead{Image: ownership.ImageID(900+h, *v.configs[900+h]), BIOS: "seabios", Machine: "pc"}
			for size := range int64(30) {
				learned.Sizes = append(learned.Sizes, v1alpha1.MemoryOverheadSize{MemoryMiB: 1024 * (1 + size), OverheadMiB: 100 + 20*size})
			}
			class.Status.MemoryOverhead = append(class.Status.MemoryOverhead, learned)
		}
		classes = append(classes, class)
	}
	return p, v, classes
}

// BenchmarkListUnchanged measures the most frequent case in Karpenter.
func BenchmarkListUnchanged(b *testing.B) {
	p, _, classes := newBigProvider(b)
	p.List(classes[0], "")
	b.ReportAllocs()
	for b.Loop() {
		p.List(classes[0], "")
	}
}

// BenchmarkListNewGeneration measures a new View that changes no offering.
func BenchmarkListNewGeneration(b *testing.B) {
	p, v, classes := newBigProvider(b)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		v.publish()
		b.StartTimer()
		for _, class := range classes {
			p.List(class, "")
		}
	}
}

// BenchmarkListRefresh measures a change of all offerings of a Host, so every object is
// new.
func BenchmarkListRefresh(b *testing.B) {
	p, v, classes := newBigProvider(b)
	online := false
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		v.change(func(r map[string]*proxmox.Resources) { r["east"].Hosts[0].Online = online })
		online = !online
		b.StartTimer()
		for _, class := range classes {
			p.List(class, "")
		}
	}
}

// BenchmarkListReserve measures a new View that changes no offering of NodeClasses with a reserve.
func BenchmarkListReserve(b *testing.B) {
	p, v, classes := newBigProvider(b)
	v.change(func(r map[string]*proxmox.Resources) {
		for h := range 4 * benchHosts {
			r["east"].Guests = append(r["east"].Guests, proxmox.GuestRow{
				VMID: 10_000 + h, Kind: proxmox.KindQEMU, Host: fmt.Sprintf("pve%d", h%benchHosts), Status: "running", CPUs: 2, MemoryBytes: 8 * gib,
			})
		}
	})
	for _, class := range classes {
		class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
	}
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		v.publish()
		b.StartTimer()
		for _, class := range classes {
			p.List(class, "")
		}
	}
}

func TestListUnchangedDoesNotAllocate(t *testing.T) {
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithAllHosts()
	class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
	p.List(class, "")
	NewWithT(t).Expect(testing.AllocsPerRun(100, func() { p.List(class, "") })).To(BeNumerically("<=", 0))
}
