// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"context"
	"fmt"
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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
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
