// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	corescheduling "sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestScheduling runs core's scheduler with our instance types, and with as many as in core's own
// benchmark, for the same pods.
func TestScheduling(t *testing.T) {
	pods := diversePods(repeats(100, 1000))
	baseline := timeSolve(t, referenceTypes(), pods)
	for _, hosts := range []int{3, 100} {
		_, provider, classes := newFleet(t, hosts, instancetype.DefaultCatalog())
		took := timeSolve(t, provider.List(classes[0], poolName), pods)
		checkTime(t, fmt.Sprintf("scheduling with %d hosts over core's benchmark", hosts), took/baseline)

		// Nodes of 50 exact sizes exist.
		testenv.Must(t, provider.RefreshNodes(nodesOfExactSizes))
		exact := classes[1]
		exact.Spec.VMSize.Policy = v1alpha1.VMSizeExact
		fitted := timeSolve(t, provider.List(exact, poolName), pods)
		checkTime(t, fmt.Sprintf("scheduling with %d hosts, exact sizes over the catalog", hosts), fitted/took)
	}
}

const poolName = "pool"

// timeSolve returns the shortest duration of several scheduling runs.
func timeSolve(t *testing.T, types []*cloudprovider.InstanceType, pods []*corev1.Pod) float64 {
	t.Helper()
	shortest := time.Hour
	for range repeats(1, 5) {
		began := time.Now()
		results := solve(t, types, pods)
		shortest = min(shortest, time.Since(began))
		t.Logf("%d types: %d nodes, %.0f pods per second", len(types), len(results.NewNodeClaims), float64(len(pods))/time.Since(began).Seconds())
	}
	return shortest.Seconds()
}

// solve runs core's scheduler in an empty cluster with the DaemonSets.
func solve(t *testing.T, types []*cloudprovider.InstanceType, pods []*corev1.Pod, daemons ...*corev1.Pod) scheduling.Results {
	t.Helper()
	ctx := coreoptions.ToContext(injection.WithControllerName(context.Background(), "provisioner"), &coreoptions.Options{
		CPURequests: 1000, IgnoreDRARequests: true,
		PreferencePolicy: coreoptions.PreferencePolicyRespect, MinValuesPolicy: coreoptions.MinValuesPolicyStrict,
	})
	kube, clk := fake.NewClientBuilder().Build(), clock.RealClock{}
	pool := &karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: poolName}}
	pool.Spec.Template.Spec.NodeClassRef = testenv.NewNodeClaim("", "class0", "").Spec.NodeClassRef
	pools, byPool := []*karpv1.NodePool{pool}, map[string][]*cloudprovider.InstanceType{poolName: types}
	cluster := state.NewCluster(clk, kube, nil)
	topology, err := scheduling.NewTopology(ctx, kube, cluster, nil, pools, byPool, pods)
	testenv.Must(t, err)
	scheduler := scheduling.NewScheduler(ctx, kube, pools, cluster, nil, topology, byPool, daemons,
		events.NewRecorder(&record.FakeRecorder{}), clk, nil, nil, scheduling.NumConcurrentReconciles(5))
	results, err := scheduler.Solve(ctx, pods)
	testenv.Must(t, err)
	if len(results.PodErrors) > 0 {
		t.Fatalf("%d pods of %d were not scheduled", len(results.PodErrors), len(pods))
	}
	return results
}

// referenceTypes returns as many instance types and offerings as core's benchmark has: 400 types
// with 2 GiB and 10 pods per vCPU, two zones, two capacity types.
func referenceTypes() (out []*cloudprovider.InstanceType) {
	one := func(key string, values ...string) *corescheduling.Requirement {
		return corescheduling.NewRequirement(key, corev1.NodeSelectorOpIn, values...)
	}
	zones, capacityTypes := []string{"zone-1", "zone-2"}, []string{karpv1.CapacityTypeSpot, karpv1.CapacityTypeOnDemand}
	for n := 1; n <= 400; n++ {
		name := fmt.Sprint("reference-", n)
		it := &cloudprovider.InstanceType{
			Name: name, Overhead: &cloudprovider.InstanceTypeOverhead{},
			Requirements: corescheduling.NewRequirements(
				one(corev1.LabelInstanceTypeStable, name), one(corev1.LabelArchStable, karpv1.ArchitectureAmd64), one(corev1.LabelOSStable, string(corev1.Linux)),
				one(corev1.LabelTopologyZone, zones...), one(karpv1.CapacityTypeLabelKey, capacityTypes...)),
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU: *resource.NewQuantity(int64(n), resource.DecimalSI), corev1.ResourcePods: *resource.NewQuantity(int64(10*n), resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(int64(2*n)*gib, resource.BinarySI),
			},
		}
		for _, zone := range zones {
			for _, capacityType := range capacityTypes {
				it.Offerings = append(it.Offerings, &cloudprovider.Offering{Available: true, Price: float64(n),
					Requirements: corescheduling.NewRequirements(one(corev1.LabelTopologyZone, zone), one(karpv1.CapacityTypeLabelKey, capacityType))})
			}
		}
		out = append(out, it)
	}
	return out
}

// diversePods returns the mix of core's benchmark: a fifth each without constraints, spread over
// zones, spread over nodes, with affinity to a zone, and with anti-affinity to nodes.
func diversePods(n int) []*corev1.Pod {
	random := rand.New(rand.NewPCG(1, 2))
	group := func(name string) []*corev1.Pod { return simplePods(random, n/5, name) }
	selector := func(labels map[string]string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: labels}
	}
	pods := group("simple")
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelHostname} {
		for _, pod := range group("spread-" + key) {
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: key, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector(pod.Labels),
			}}
			pods = append(pods, pod)
		}
	}
	for _, pod := range group("affinity") {
		pod.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelTopologyZone, LabelSelector: selector(pod.Labels)},
		}}}
		pods = append(pods, pod)
	}
	for _, pod := range group("anti-affinity") {
		pod.Labels = map[string]string{"group": "anti-affinity"}
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: selector(pod.Labels)},
		}}}
		pods = append(pods, pod)
	}
	return pods
}

// simplePods returns pods with the sizes of core's benchmark and one of seven labels.
func simplePods(random *rand.Rand, n int, name string) (pods []*corev1.Pod) {
	cpus, memory := []int64{100, 250, 500, 1000, 1500}, []int64{100, 256, 512, 1024, 2048, 4096}
	for i := range n {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: fmt.Sprintf("%s-%d", name, i), UID: types.UID(fmt.Sprintf("%s-%d", name, i)),
				Labels: map[string]string{"group": fmt.Sprint(name, random.IntN(7))},
			},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewMilliQuantity(cpus[random.IntN(len(cpus))], resource.DecimalSI),
				corev1.ResourceMemory: *resource.NewQuantity(memory[random.IntN(len(memory))]<<20, resource.BinarySI),
			}}}}},
		})
	}
	return pods
}

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
