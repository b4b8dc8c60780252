// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestExactSizes runs 30 random Deployments on Nodes of the catalog and, after an upgrade, of
// exact size. Neither the upgrade nor a restart replaces a Node. Then a third of the
// Deployments is removed, and consolidation must end. E2E_SEED=n repeats a run. E2E_LONG=1
// requires that nothing changes for ten minutes afterwards.
func TestExactSizes(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it creates many VMs"))
	const deployments = 30
	e := newEnv(t, setup{args: []string{"--vm-size-policy", string(v1alpha1.VMSizeInstanceType)}})
	p := e.newNodePool(t, "exact", func(kit *harness.Kit) {
		kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("Never")
		kit.Class.Spec.VMSize = v1alpha1.VMSizing{
			Max: v1alpha1.VMSize{CPU: 8, Memory: "32Gi"}, // several Nodes
		}
	})
	w := &workload{nodePool: p, random: newRandom(t), replicas: map[string]int32{}}
	w.add(t, deployments/3)
	fixed := w.settle(t)
	expectSizes(t, fixed, false)

	e.controller.Stop()
	e.controller.AddArgs("--vm-size-policy", string(v1alpha1.VMSizeExact))
	must(t, e.controller.Start(t.Context()))
	w.expectSameNodes(t, fixed)
	w.add(t, deployments-deployments/3)
	before := w.settle(t)
	w.expectSameNodes(t, fixed)
	exact := maps.Clone(before)
	maps.DeleteFunc(exact, func(uid types.UID, _ karpv1.NodeClaim) bool { _, ok := fixed[uid]; return ok })
	expectSizes(t, exact, true)

	e.controller.Kill()
	must(t, e.controller.Start(t.Context()))
	w.expectSameNodes(t, before)

	w.removeThird(t)
	must(t, e.kube.Patch(t.Context(), &karpv1.NodePool{ObjectMeta: p.kit.Pool.ObjectMeta},
		client.RawPatch(types.MergePatchType, []byte(`{"spec":{"disruption":{"consolidateAfter":"1s"}}}`))))
	w.eventually(t, "consolidation to save something", func(ctx context.Context) error {
		now, err := w.current(ctx)
		if err != nil {
			return err
		}
		return expectCheaper(now, before)
	})
	w.waitUntilQuiet(t)
	after := w.settle(t)
	must(t, expectCheaper(after, before))
	if len(after) == 0 {
		t.Error("no Nodes are left")
	}
}

// newRandom returns a source of random numbers and logs its seed.
func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(18)
	if text := os.Getenv("E2E_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		must(t, err)
	}
	t.Logf("seed %d; repeat with E2E_SEED=%d", seed, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// workload is a number of Deployments of a NodePool.
type workload struct {
	*nodePool
	random   *rand.Rand
	replicas map[string]int32 // by name
}

// add creates Deployments with random requests.
func (w *workload) add(t *testing.T, n int) {
	t.Helper()
	milliCPU, mib := []int64{50, 100, 250, 500, 1000}, []int64{64, 128, 256, 512, 1024, 1500}
	for range n {
		d := harness.Deployment(fmt.Sprintf("%s-%d", w.name, len(w.replicas)), 1+w.random.Int32N(3))
		d.Spec.Template.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: w.name}
		d.Spec.Template.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			corev1.ResourceCPU:    *resource.NewMilliQuantity(milliCPU[w.random.IntN(len(milliCPU))], resource.DecimalSI),
			corev1.ResourceMemory: *resource.NewQuantity(mib[w.random.IntN(len(mib))]<<20, resource.BinarySI),
		}
		must(t, w.kube.Create(t.Context(), d))
		w.replicas[d.Name] = *d.Spec.Replicas
	}
}

// removeThird removes the pods of every third Deployment.
func (w *workload) removeThird(t *testing.T) {
	t.Helper()
	for n := range len(w.replicas) / 3 {
		name := fmt.Sprintf("%s-%d", w.name, 3*n)
		must(t, harness.Scale(t.Context(), w.kube, name, 0))
		w.replicas[name] = 0
	}
}

// settle waits until all pods are ready and all NodeClaims have a Node with their capacity,
// and returns the NodeClaims.
func (w *workload) settle(t *testing.T) map[types.UID]karpv1.NodeClaim {
	t.Helper()
	var found map[types.UID]karpv1.NodeClaim
	w.eventually(t, "all pods to be ready on Nodes with the capacity of their NodeClaims", func(ctx context.Context) (err error) {
		if err := w.podsReady(ctx); err != nil {
			return err
		}
		if found, err = w.current(ctx); err != nil {
			return err
		}
		for _, claim := range found {
			if err := settled(&claim); err != nil {
				return err
			}
			node, err := w.node(ctx, &claim)
			if err != nil {
				return err
			}
			if err := sameCapacity(node, &claim); err != nil {
				return err
			}
		}
		return nil
	})
	return found
}

// podsReady returns an error unless all pods of all Deployments are ready.
func (w *workload) podsReady(ctx context.Context) error {
	for name, want := range w.replicas {
		d := &appsv1.Deployment{}
		if err := w.kube.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceDefault, Name: name}, d); err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration != d.Generation || s.Replicas != want || s.ReadyReplicas != want {
			return fmt.Errorf("%d of %d pods of %s are ready, want %d", s.ReadyReplicas, s.Replicas, name, want)
		}
	}
	return nil
}

// current returns the NodeClaims by UID.
func (w *workload) current(ctx context.Context) (map[types.UID]karpv1.NodeClaim, error) {
	claims, err := w.claims(ctx)
	out := map[types.UID]karpv1.NodeClaim{}
	for _, claim := range claims {
		out[claim.UID] = claim
	}
	return out, err
}

// sameCapacity returns an error unless the Node has the CPUs and pods of its NodeClaim. How
// much memory and disk Linux needs is an estimate.
func sameCapacity(node *corev1.Node, claim *karpv1.NodeClaim) error {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourcePods, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		has, claimed := node.Status.Capacity[name], claim.Status.Capacity[name]
		deviation := 0.0
		if name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			deviation = 0.05
		}
		if ratio := has.AsApproximateFloat64() / claimed.AsApproximateFloat64(); ratio < 1-deviation || ratio > 1+deviation {
			return fmt.Errorf("node %s of type %s has %s of %s, its claim %s", node.Name, claim.Labels[corev1.LabelInstanceTypeStable], has.String(), name, claimed.String())
		}
	}
	if node.Labels[corev1.LabelInstanceTypeStable] != claim.Labels[corev1.LabelInstanceTypeStable] {
		return fmt.Errorf("the instance type of node %s is %s, that of its claim %s", node.Name, node.Labels[corev1.LabelInstanceTypeStable], claim.Labels[corev1.LabelInstanceTypeStable])
	}
	return nil
}

// expectSameNodes waits until a started controller has checked NodeClaims for drift, and checks
// that none of them is replaced.
func (w *workload) expectSameNodes(t *testing.T, want map[types.UID]karpv1.NodeClaim) {
	t.Helper()
	w.eventually(t, "all claims to be checked for drift", func(ctx context.Context) error {
		checks, err := w.controller.Metric(ctx, "controller_runtime_reconcile_total", map[string]string{"controller": "nodeclaim.disruption"})
		if err == nil && checks < float64(len(want)) {
			err = fmt.Errorf("%v checks of %d claims", checks, len(want))
		}
		return err
	})
	found, err := w.current(t.Context())
	must(t, err)
	for uid, was := range want {
		now, ok := found[uid]
		switch drifted := now.StatusConditions().Get(karpv1.ConditionTypeDrifted); {
		case !ok || !now.DeletionTimestamp.IsZero():
			t.Errorf("claim %s of type %s was deleted", was.Name, was.Labels[corev1.LabelInstanceTypeStable])
		case drifted != nil && drifted.IsTrue():
			t.Errorf("claim %s of type %s has drifted: %s", now.Name, now.Labels[corev1.LabelInstanceTypeStable], drifted.Reason)
		}
	}
}

// waitUntilQuiet waits until no NodeClaim is created or deleted for longer than Karpenter needs
// to find and validate a consolidation: 10 and 15 seconds.
func (w *workload) waitUntilQuiet(t *testing.T) {
	t.Helper()
	quiet := 27 * time.Second
	if os.Getenv("E2E_LONG") != "" {
		quiet = 10 * time.Minute
	}
	var known map[types.UID]karpv1.NodeClaim
	changed, created := time.Now(), 0
	w.within(t, quiet+2*timeout(), "consolidation to end", func(ctx context.Context) error {
		found, err := w.current(ctx)
		if err != nil {
			return err
		}
		if !maps.EqualFunc(found, known, func(a, b karpv1.NodeClaim) bool { return a.DeletionTimestamp.IsZero() == b.DeletionTimestamp.IsZero() }) {
			for uid := range found {
				if _, ok := known[uid]; !ok && known != nil {
					created++
				}
			}
			known, changed = found, time.Now()
		}
		if rest := quiet - time.Since(changed); rest > 0 {
			return fmt.Errorf("the claims changed %s ago; %d were created in all", time.Since(changed).Round(time.Second), created)
		}
		return w.podsReady(ctx)
	})
	t.Logf("%d Nodes are left, consolidation created %d", len(known), created)
}

// expectSizes checks whether NodeClaims have sizes that the catalog does not have.
func expectSizes(t *testing.T, claims map[types.UID]karpv1.NodeClaim, exact bool) {
	t.Helper()
	catalog := map[string]bool{}
	for _, it := range instancetype.DefaultCatalog().Types() {
		catalog[it.Name] = true
	}
	var names, others []string
	for _, claim := range claims {
		name := claim.Labels[corev1.LabelInstanceTypeStable]
		if names = append(names, name); !catalog[name] {
			others = append(others, name)
		}
	}
	if len(names) == 0 || exact != (len(others) > 0) {
		t.Errorf("the types of claims are %q; not in the catalog are %q, want some: %t", names, others, exact)
	}
}

// expectCheaper returns an error unless NodeClaims are cheaper than those before. A NodeClaim
// that Karpenter has just created has no type yet.
func expectCheaper(now, before map[types.UID]karpv1.NodeClaim) error {
	price, err := priceOf(now)
	if err != nil {
		return err
	}
	limit, err := priceOf(before)
	if err == nil && price >= limit {
		err = fmt.Errorf("%d Nodes of %d are left, and they are not cheaper", len(now), len(before))
	}
	return err
}

// priceOf returns the price of NodeClaims.
func priceOf(claims map[types.UID]karpv1.NodeClaim) (sum float64, err error) {
	for _, claim := range claims {
		size, ok := instancetype.DefaultCatalog().Get(claim.Labels[corev1.LabelInstanceTypeStable])
		if !ok {
			return 0, fmt.Errorf("claim %s has the unknown type %q", claim.Name, claim.Labels[corev1.LabelInstanceTypeStable])
		}
		sum += float64(size.CPUs) + float64(size.MemoryBytes)/float64(4<<30)
	}
	return sum, nil
}
