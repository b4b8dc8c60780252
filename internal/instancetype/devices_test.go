// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

// newGPUProvider returns a provider with two devices of mapping gpu on pve1 and one on
// pve2.
func newGPUProvider(t *testing.T) (*instancetype.Provider, *viewer) {
	t.Helper()
	g := NewWithT(t)
	v := newViewer()
	v.mappings = []proxmox.PCIMapping{{ID: "gpu", Devices: []proxmox.PCIDevice{
		{Host: "pve1", Path: "0000:01:00.0"}, {Host: "pve1", Path: "0000:02:00.0"}, {Host: "pve2", Path: "0000:01:00.0"},
	}}}
	v.reserved = map[string]inventory.Reservation{}
	v.publish()
	devices, err := instancetype.ParseDevices("gpu=nvidia.com/gpu, fpga=xilinx.com/fpga")
	g.Expect(err).NotTo(HaveOccurred())
	catalog, err := instancetype.DefaultCatalog().WithDevices(devices)
	g.Expect(err).NotTo(HaveOccurred())
	p, err := instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Catalog: catalog, PCIResources: devices})
	g.Expect(err).NotTo(HaveOccurred())
	return p, v
}

func TestListDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, v := newGPUProvider(t)
	const name = "g1.4VCPU-16GB-gpu"
	class := newNodeClassWithAllHosts()
	it := find(t, p.List(class, ""), name)
	n := it.Capacity[gpu]
	g.Expect(n.Value()).To(BeEquivalentTo(1), "%s has %s GPUs", name, n.String())
	g.Expect(availability(it)).To(Equal(map[string]bool{"pve1": true, "pve2": true, "pve9": false}))
	v.reserved["a"] = inventory.Reservation{ClaimUID: "a", Region: "east", Host: "pve2", VMID: 20001, Devices: []string{"gpu"}}
	v.publish()
	g.Expect(availability(find(t, p.List(class, ""), name))["pve2"]).To(BeFalse(), "the device of pve2 is reserved, but still available")
	g.Expect(p.UnavailableReasons(class, name)[zone("east", "pve2")]).To(Equal("pve2: 0 nvidia.com/gpu free (mapping gpu), 1 requested"))

	claim := newClaim("1", "1Gi")
	claim.Spec.Resources.Requests[gpu] = resource.MustParse("1")
	placed, err := placement.Choose(v.View(), must(p.Request(class, claim, instancetype.RequestOptions{})))
	if err != nil || placed.Zone != zone("east", "pve1") || !slices.Equal(placed.Devices, []string{"gpu"}) {
		t.Errorf("got %+v (%v), want a GPU of pve1", placed, err)
	}
	// Pods that need no device must not use one.
	for _, option := range must(p.Request(class, newClaim("15", "1Gi"), instancetype.RequestOptions{})).Options[:1] {
		g.Expect(option.InstanceType).NotTo(HavePrefix("g1"), "the cheapest type for a pod without GPU")
	}
}

func TestListTemplateDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, v := newGPUProvider(t)
	for _, template := range []int{901, 902, 909} {
		v.configs[template].Options["hostpci0"] = "mapping=gpu,pcie=1"
	}
	v.publish()
	class := newNodeClassWithAllHosts()
	small, large := find(t, p.List(class, ""), "c1.1VCPU-2GB"), find(t, p.List(class, ""), "g1.4VCPU-16GB-gpu")
	if n := small.Capacity[gpu]; n.Value() != 1 {
		t.Errorf("a type of a class whose template has a GPU has %s", n.String())
	}
	if n := large.Capacity[gpu]; n.Value() != 1 {
		t.Errorf("a GPU type has %s GPUs, want only the template's", n.String())
	}
	for _, it := range []map[string]bool{availability(small), availability(large)} {
		if !it["pve1"] || !it["pve2"] || it["pve9"] {
			t.Errorf("offered %v, want only where the template's device is", it)
		}
	}
	placed, err := placement.Choose(v.View(), must(p.Request(class, newClaim("1m", "1Mi"), instancetype.RequestOptions{})))
	g.Expect(err).NotTo(HaveOccurred(), "want the template's device counted")
	g.Expect(placed.Devices).To(Equal([]string{"gpu"}), "want the template's device counted")
}

func TestParseDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	devices, err := instancetype.ParseDevices("b=nvidia.com/gpu,a=nvidia.com/gpu")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(devices[gpu]).To(Equal([]string{"a", "b"}))
	if devices, err := instancetype.ParseDevices(""); err != nil || len(devices) != 0 {
		t.Errorf("an empty setting returned %v (%v)", devices, err)
	}
	for _, bad := range []string{"gpu", "gpu=", "=nvidia.com/gpu", "gpu=cpu", "gpu=nvidia.com/gpu,gpu=amd.com/gpu", "gpu=a/b/c"} {
		g.Expect(instancetype.ParseDevices(bad)).Error().To(MatchError(ContainSubstring("want")), "%q gave", bad)
	}
}
