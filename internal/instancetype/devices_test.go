// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const gpu = corev1.ResourceName("nvidia.com/gpu")

// newGPUProvider returns a provider with two devices of mapping gpu on pve1 and one on
// pve2.
func newGPUProvider() (*instancetype.Provider, *viewer) {
	v := newViewer()
	v.mappings = []proxmox.PCIMapping{{ID: "gpu", Devices: []proxmox.PCIDevice{
		{Host: "pve1", Path: "0000:01:00.0"}, {Host: "pve1", Path: "0000:02:00.0"}, {Host: "pve2", Path: "0000:01:00.0"},
	}}}
	v.reserved = map[string]inventory.Reservation{}
	v.publish()
	devices := must(instancetype.ParseDevices("gpu=nvidia.com/gpu, fpga=xilinx.com/fpga"))
	catalog := must(instancetype.DefaultCatalog().WithDevices(devices))
	return must(instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Catalog: catalog, PCIResources: devices})), v
}

func TestListDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, v := newGPUProvider()
	const name = "g1.4VCPU-16GB-gpu"
	class := newNodeClassWithAllHosts()
	it := find(t, p.List(class, ""), name)
	n := it.Capacity[gpu]
	g.Expect(n.Value()).To(BeEquivalentTo(1), "%s has %s GPUs", name, n.String())
	g.Expect(offered(it)).To(Equal("pve1 pve2 !pve9"))
	v.reserved["a"] = inventory.Reservation{ClaimUID: "a", Region: "east", Host: "pve2", VMID: 20001, Devices: []string{"gpu"}}
	v.publish()
	g.Expect(offers(t, p, class, name)).To(Equal("pve1 !pve2 !pve9"), "the device of pve2 is reserved")
	g.Expect(p.UnavailableReasons(class, name)[zone("east", "pve2")]).To(Equal("pve2: 0 nvidia.com/gpu free (mapping gpu), 1 requested"))

	claim := newClaim("1", "1Gi")
	claim.Spec.Resources.Requests[gpu] = resource.MustParse("1")
	g.Expect(choose(v, p, class, claim)).To(And(HaveField("Zone", zone("east", "pve1")), HaveField("Devices", []string{"gpu"})))
	// Pods that need no device must not use one.
	cheapest := requestFor(p, class, newClaim("15", "1Gi")).Options[0]
	g.Expect(cheapest.InstanceType).NotTo(HavePrefix("g1"), "the cheapest type for a pod without GPU")
}

func TestListTemplateDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, v := newGPUProvider()
	for _, template := range []int{901, 902, 909} {
		v.configs[template].Options["hostpci0"] = "mapping=gpu,pcie=1"
	}
	v.publish()
	class := newNodeClassWithAllHosts()
	for _, name := range []string{"c1.1VCPU-2GB", "g1.4VCPU-16GB-gpu"} {
		it := find(t, p.List(class, ""), name)
		n := it.Capacity[gpu]
		g.Expect(n.Value()).To(BeEquivalentTo(1), "%s: want only the template's GPU", name)
		g.Expect(offered(it)).To(Equal("pve1 pve2 !pve9"), name)
	}
	g.Expect(choose(v, p, class, newClaim("1m", "1Mi"))).To(HaveField("Devices", []string{"gpu"}))
}

func TestParseDevices(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.Expect(instancetype.ParseDevices("b=nvidia.com/gpu,a=nvidia.com/gpu")).To(HaveKeyWithValue(gpu, []string{"a", "b"}))
	g.Expect(instancetype.ParseDevices("")).To(BeEmpty())
	for _, bad := range []string{"gpu", "gpu=", "=nvidia.com/gpu", "gpu=cpu", "gpu=nvidia.com/gpu,gpu=amd.com/gpu", "gpu=a/b/c"} {
		g.Expect(instancetype.ParseDevices(bad)).Error().To(MatchError(ContainSubstring("want")), "%q gave", bad)
	}
}
