// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"math"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// workload is a kind of pods: their requests are chosen from the values.
type workload struct {
	name           string
	milliCPU, mib  []int64
	withDaemonSets bool
}

var workloads = []workload{
	{name: "web pods", milliCPU: []int64{50, 100, 250, 500}, mib: []int64{64, 128, 256, 512}},
	{name: "JVMs", milliCPU: []int64{500, 1000, 2000}, mib: []int64{3072, 4096, 6144, 8192}},
	{name: "mixed with DaemonSets", milliCPU: []int64{100, 250, 500, 1000, 1500}, mib: []int64{100, 256, 512, 1024, 2048, 4096}, withDaemonSets: true},
	{name: "batch", milliCPU: []int64{1000, 2000, 4000}, mib: []int64{1024, 2048}},
}

// pods returns n pods of the workload.
func (w workload) pods(random *rand.Rand, n int) []*corev1.Pod {
	pods := simplePods(random, n, w.name)
	for _, pod := range pods {
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(w.milliCPU[random.IntN(len(w.milliCPU))], resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(w.mib[random.IntN(len(w.mib))]<<20, resource.BinarySI),
		}
	}
	return pods
}

// daemons returns the pods that each Node gets: a CNI, a log agent and a CSI driver.
func (w workload) daemons() []*corev1.Pod {
	if !w.withDaemonSets {
		return nil
	}
	daemon := workload{name: "daemon", milliCPU: []int64{50}, mib: []int64{100}}
	return daemon.pods(rand.New(rand.NewPCG(0, 0)), 3)
}

// packing is what VMs have, what their pods request, and what they cost.
type packing struct {
	vms, pending                              int
	price, cpus, memory, usedCPUs, usedMemory float64
}

func (p *packing) add(other packing) {
	p.vms, p.pending, p.price = p.vms+other.vms, p.pending+other.pending, p.price+other.price
	p.cpus, p.memory, p.usedCPUs, p.usedMemory = p.cpus+other.cpus, p.memory+other.memory, p.usedCPUs+other.usedCPUs, p.usedMemory+other.usedMemory
}

// binding returns the share of the resource that the pods use most of.
func (p *packing) binding() float64 { return max(p.usedCPUs/p.cpus, p.usedMemory/p.memory) }

// TestPacking schedules workloads with core's scheduler and places the NodeClaims, with VMs of
// exact size and with those of the catalog. It compares what the pods request with the size of
// the VMs.
func TestPacking(t *testing.T) {
	h, provider, classes := newFleet(t, 100, instancetype.DefaultCatalog())
	exact, catalog := classes[0], classes[1]
	exact.Spec.VMSize.Policy, catalog.Spec.VMSize.Policy = v1alpha1.VMSizeExact, v1alpha1.VMSizeInstanceType
	place := func(class *v1alpha1.ProxmoxNodeClass, pods []*corev1.Pod, daemons []*corev1.Pod) (result packing) {
		results := solve(t, provider.List(class, poolName), pods, daemons...)
		result.pending = len(results.PodErrors)
		for _, node := range results.NewNodeClaims {
			claim := node.ToNodeClaim()
			request, err := provider.Request(class, claim, instancetype.RequestOptions{})
			testenv.Must(t, err)
			placed, err := placement.Choose(h.View(), request)
			testenv.Must(t, err)
			vm, ok := provider.Get(class, placed.InstanceType)
			if !ok || !resources.Fits(claim.Spec.Resources.Requests, vm.Allocatable()) {
				t.Fatalf("%s does not hold the pods", placed.InstanceType)
			}
			size, _ := instancetype.DefaultCatalog().Get(placed.InstanceType)
			result.add(packing{vms: 1, price: cheapest(vm), cpus: float64(size.CPUs), memory: float64(size.MemoryBytes)})
			for _, pod := range append(node.Pods, daemons...) {
				requests := pod.Spec.Containers[0].Resources.Requests
				result.add(packing{usedCPUs: requests.Cpu().AsApproximateFloat64(), usedMemory: requests.Memory().AsApproximateFloat64()})
			}
		}
		return result
	}
	for _, w := range workloads {
		var fixed, fitted, fixedFew, fittedFew packing
		lowest := math.Inf(1)
		for seed := range uint64(repeats(3, 20)) {
			random := rand.New(rand.NewPCG(seed, 18))
			pods := w.pods(random, 200)
			before, after := place(catalog, pods, w.daemons()), place(exact, pods, w.daemons())
			if after.vms > before.vms || after.pending > before.pending || after.price > before.price || after.cpus > before.cpus || after.memory > before.memory {
				t.Errorf("%s, seed %d: exact sizes need %+v, the catalog %+v", w.name, seed, after, before)
			}
			lowest = min(lowest, after.binding()/target(after))
			fixed.add(before)
			fitted.add(after)
			few := pods[:1+random.IntN(8)]
			fixedFew.add(place(catalog, few, w.daemons()))
			fittedFew.add(place(exact, few, w.daemons()))
		}
		t.Logf("%s: %d VMs of exact size, %d of the catalog", w.name, fitted.vms, fixed.vms)
		figure := func(name string, value float64) { checkCount(t, name+", "+w.name, value) }
		figure("vCPUs used, catalog", fixed.usedCPUs/fixed.cpus)
		figure("vCPUs used, exact", fitted.usedCPUs/fitted.cpus)
		figure("memory used, catalog", fixed.usedMemory/fixed.memory)
		figure("memory used, exact", fitted.usedMemory/fitted.memory)
		figure("binding resource over its target, exact, worst seed", lowest)
		figure("price, exact over catalog", fitted.price/fixed.price)
		figure("VMs, exact over catalog", float64(fitted.vms)/float64(fixed.vms))
		figure("1 to 8 pods, vCPUs used, catalog", fixedFew.usedCPUs/fixedFew.cpus)
		figure("1 to 8 pods, vCPUs used, exact", fittedFew.usedCPUs/fittedFew.cpus)
		figure("1 to 8 pods, memory used, catalog", fixedFew.usedMemory/fixedFew.memory)
		figure("1 to 8 pods, memory used, exact", fittedFew.usedMemory/fittedFew.memory)
	}
}

// target is the share that exact sizes must reach of the resource that the pods use most of:
// 90 % of the vCPUs or 85 % of the memory.
func target(p packing) float64 {
	if p.usedCPUs/p.cpus > p.usedMemory/p.memory {
		return 0.9
	}
	return 0.85
}

// cheapest returns the lowest price of a type.
func cheapest(it *cloudprovider.InstanceType) float64 {
	price := it.Offerings[0].Price
	for _, o := range it.Offerings {
		price = min(price, o.Price)
	}
	return price
}
