// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
)

const mib = int64(1) << 20

// TestOverheadBySize holds the formulas of the package comment to their figures.
func TestOverheadBySize(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	list := p.List(newNodeClassWithAllHosts(), "")
	for name, want := range map[string]struct{ memory, kubeMilli, kubeMiB int64 }{
		"c1.1VCPU-2GB":    {1894, 60, 256},   // 10 % would be 205 MiB
		"s1.1VCPU-4GB":    {3788, 60, 410},   // 10 % of 4 GiB
		"c1.4VCPU-8GB":    {7577, 80, 615},   // + 5 % of 4 GiB
		"s1.4VCPU-16GB":   {15155, 80, 1024}, // + 5 % of 12 GiB
		"s1.8VCPU-32GB":   {30310, 90, 1352}, // + 2 % of 16 GiB
		"m1.16VCPU-128GB": {121241, 110, 3318},
	} {
		it := find(t, list, name)
		got := it.Capacity.Memory().Value()
		g.Expect(got).To(Equal(want.memory*mib), "%s has %d MiB", name, got/mib)
		kube := it.Overhead.KubeReserved
		if kube.Cpu().MilliValue() != want.kubeMilli || kube.Memory().Value() != want.kubeMiB*mib {
			t.Errorf("%s reserves %dm and %d MiB, want %dm and %d MiB", name,
				kube.Cpu().MilliValue(), kube.Memory().Value()/mib, want.kubeMilli, want.kubeMiB)
		}
		left := it.Allocatable()
		wantLeft := it.Capacity.Memory().Value() - want.kubeMiB*mib - (64+100)*mib
		g.Expect(left.Memory().Value()).To(Equal(wantLeft), "%s leaves", name)
		g.Expect(left.Cpu().MilliValue()).To(Equal(it.Capacity.Cpu().MilliValue()-want.kubeMilli-10), "%s leaves", name)
	}
}

// TestCapacityPassesConsistencyCheck: Karpenter rejects a Node with less than 90 % of
// its claim's capacity. Guests lose between 2 and 15 % of their memory, and a typical
// image loses a boot and a firmware partition of its disk.
func TestCapacityPassesConsistencyCheck(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	for _, it := range p.List(newNodeClassWithAllHosts(), "") {
		typ, _ := instancetype.DefaultCatalog().Get(it.Name)
		g.Expect(float64(typ.MemoryBytes)*0.85).To(BeNumerically(">=", 0.9*it.Capacity.Memory().AsApproximateFloat64()),
			"%s claims %s of %d bytes", it.Name, it.Capacity.Memory(), typ.MemoryBytes)
		guestDisk := float64(typ.EphemeralBytes)*0.98 - float64(1200*mib)
		g.Expect(guestDisk).To(BeNumerically(">=", it.Capacity.StorageEphemeral().AsApproximateFloat64()), "%s claims", it.Name)
	}
}

func TestCapacityByNodeClass(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	class := newNodeClassWithAllHosts()
	pods := int32(42)
	class.Spec.BootDevice.Size = "100Gi"
	class.Spec.KubeletConfiguration = &v1alpha1.KubeletConfiguration{MaxPods: &pods}
	it := find(t, p.List(class, ""), "t1.2VCPU-6GB")
	g.Expect(it.Capacity.Pods().Value()).To(BeEquivalentTo(42), "want the kubelet's maxPods")
	g.Expect(it.Capacity.StorageEphemeral().Value()).To(Equal(93 * gib))
	if got := it.Allocatable()[corev1.ResourceEphemeralStorage]; got.Value() >= 84*gib || got.Value() < 83*gib {
		t.Errorf("%s of disk are left, want 10 %% less for eviction", got.String())
	}
	where := zone("east", "pve1")
	if need, _ := p.Need(class, "pool", it.Name, where); need.CPUs != 2 || need.MemoryBytes != 6*gib || need.DiskBytes != 100*gib || need.Storage != "local" {
		t.Errorf("the VM needs %+v", need)
	}
	class.Spec.BootDevice.Size, class.Spec.BootDevice.Storage = "10G", "fast"
	if need, _ := p.Need(class, "pool", it.Name, where); need.DiskBytes != 30*gib || need.Storage != "fast" {
		t.Errorf("the VM needs %+v, want the larger disk of the type", need)
	}
}

func TestOverheadFromFile(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	catalog, err := instancetype.Parse([]byte(goodFile))
	g.Expect(err).NotTo(HaveOccurred())
	p, err := instancetype.New(instancetype.Deps{Inventory: newViewer(), Pricing: pricing(), Catalog: catalog, VMMemoryOverheadPercent: new(0.0)})
	g.Expect(err).NotTo(HaveOccurred())
	list := p.List(newNodeClassWithAllHosts(), "")
	it := find(t, list, "t1.2VCPU-6GB")
	g.Expect(it.Capacity.Memory().Value()).To(Equal(6*gib), "without overhead the Node")
	left := it.Allocatable()
	g.Expect(left.Memory().Value()).To(Equal(6*gib - (384+64+100)*mib - gib))
	gpus := find(t, list, "gpu").Capacity["nvidia.com/gpu"]
	g.Expect(gpus.Value()).To(BeEquivalentTo(1), "the GPU is missing: %s", gpus.String())
}

func TestNewInvalidDeps(t *testing.T) {
	t.Parallel()
	for _, deps := range []instancetype.Deps{{}, {Inventory: newViewer(), VMMemoryOverheadPercent: new(7.5)}, {Inventory: newViewer(), VMMemoryOverheadPercent: new(-1.0)}} {
		NewWithT(t).Expect(instancetype.New(deps)).Error().To(HaveOccurred(), "%+v was accepted", deps)
	}
}
