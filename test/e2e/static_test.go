// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestStaticPools: NodePools with a fixed number of Nodes, whatever pods ask for.
func TestStaticPools(t *testing.T) {
	t.Parallel()
	w := newWorld(t, setup{hosts: 4, featureGates: "StaticCapacity=true"})
	t.Run("shared", func(t *testing.T) {
		t.Run("a pool has as many nodes as it says", func(t *testing.T) { t.Parallel(); w.fixedNumber(t) })
		t.Run("a pool that is larger than Proxmox waits for room", func(t *testing.T) { t.Parallel(); w.tooManyReplicas(t) })
	})
}

func (w *world) fixedNumber(t *testing.T) {
	needs(t, guestsThatJoin(), room(6))
	p := w.newStaticPool(t, "fixed", "c1.1VCPU-2GB", 3)
	p.nodes(t, 3)
	p.replicas(t, 5)
	claims := p.nodes(t, 5)

	vms, err := p.vms(t.Context())
	must(t, err)
	i := slices.IndexFunc(vms, func(vm harness.Guest) bool { return vm.Name == claims[0].Name })
	if i < 0 {
		t.Fatalf("claim %s has no VM among %v", claims[0].Name, vmids(vms))
	}
	must(t, w.api.Destroy(t.Context(), vms[i]))
	p.claimGoes(t, &claims[0])
	p.nodes(t, 5)

	p.replicas(t, 1)
	p.nodes(t, 1)
	p.replicas(t, 0)
	p.nodes(t, 0)
	p.nothingLeft(t)
}

// tooManyReplicas asks for ten large VMs where each of the four Hosts has room
// for one. Core makes a claim that was refused anew at once, without any pause.
func (w *world) tooManyReplicas(t *testing.T) {
	needs(t, simulator("it knows how much room there is"))
	const replicas, room = 10, 4
	made := w.countClaims(t, "toomany")
	p := w.newStaticPool(t, "toomany", "c1.8VCPU-16GB", replicas)
	waiting := p.initialized(t, replicas, room)
	for _, claim := range waiting {
		message := p.hasEvent(t, claim, "WaitingForCapacity")
		for _, host := range []string{"pve1", "pve2", "pve3", "pve4", "CPU"} {
			if !strings.Contains(message, host) {
				t.Errorf("the event of claim %s does not tell about %s: %s", claim, host, message)
			}
		}
	}
	// The pods that come now run on the four, so that scaling down takes the others.
	p.run(t, room)
	p.podsRun(t, room)

	before, window := made(), 15*time.Second
	time.Sleep(window) // a loop would make hundreds meanwhile
	if after := made(); after-before > replicas-room {
		t.Errorf("%d claims were made within %s for %d that wait, want at most one each", after-before, window, replicas-room)
	}
	if total := made(); total > 2*replicas {
		t.Errorf("%d claims were made for %d replicas", total, replicas)
	}
	if vms, err := p.vms(t.Context()); err != nil || len(vms) != room {
		t.Errorf("there are VMs %v (%v), want %d", vmids(vms), err, room)
	}

	p.replicas(t, room)
	p.nodes(t, room)
	p.podsRun(t, room)
	p.scaleToZero(t)
	p.replicas(t, 0)
	p.nodes(t, 0)
	p.nothingLeft(t)
}

// newStaticPool makes a pool with a fixed number of Nodes of one size.
func (w *world) newStaticPool(t *testing.T, name, instanceType string, replicas int64) *pool {
	t.Helper()
	return w.newPool(t, name, func(kit *harness.Kit) {
		kit.Pool.Spec.Replicas = &replicas
		kit.Pool.Spec.Limits = nil // what a static pool may use is its replicas
		kit.Pool.Spec.Template.Spec.Requirements = append(kit.Pool.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{instanceType},
		})
	})
}

func (p *pool) replicas(t *testing.T, n int64) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
	must(t, p.kube.Patch(t.Context(), &karpv1.NodePool{ObjectMeta: p.kit.Pool.ObjectMeta}, client.RawPatch(types.MergePatchType, patch)))
}

// nodes waits for exactly so many claims, all of them settled.
func (p *pool) nodes(t *testing.T, want int) []karpv1.NodeClaim {
	t.Helper()
	var claims []karpv1.NodeClaim
	p.eventually(t, fmt.Sprintf("%d nodes of %s", want, p.name), func(ctx context.Context) (err error) {
		if claims, err = p.claims(ctx); err != nil {
			return err
		}
		if len(claims) != want {
			return fmt.Errorf("there are %d claims", len(claims))
		}
		for i := range claims {
			if err := settled(&claims[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return claims
}

// initialized waits for so many claims of which some are initialized, and names
// the others.
func (p *pool) initialized(t *testing.T, all, want int) (others []string) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("%d claims of %s, %d with nodes", all, p.name, want), func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		if err != nil {
			return err
		}
		others = nil
		for i := range claims {
			if settled(&claims[i]) != nil {
				others = append(others, claims[i].Name)
			}
		}
		if len(claims) != all || len(others) != all-want {
			return fmt.Errorf("there are %d claims, %d without a node", len(claims), len(others))
		}
		return nil
	})
	return others
}

// claimGoes waits until a claim is no more.
func (p *pool) claimGoes(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	// A VM that is missing while its claim is young is given two minutes to show up.
	p.within(t, 2*time.Minute+patience(), "claim "+claim.Name+" to go", func(ctx context.Context) error {
		now := &karpv1.NodeClaim{}
		err := p.kube.Get(ctx, client.ObjectKeyFromObject(claim), now)
		if err == nil {
			err = fmt.Errorf("it is still there, deleting since %v", now.DeletionTimestamp)
		}
		return client.IgnoreNotFound(err)
	})
}

// countClaims tells how many claims of a pool were ever made, from now on.
func (w *world) countClaims(t *testing.T, pool string) func() int {
	t.Helper()
	watcher, err := w.kube.Watch(t.Context(), &karpv1.NodeClaimList{}, client.MatchingLabels{karpv1.NodePoolLabelKey: pool})
	must(t, err)
	t.Cleanup(watcher.Stop)
	var mu sync.Mutex
	seen := map[types.UID]bool{}
	go func() {
		for event := range watcher.ResultChan() {
			if claim, ok := event.Object.(*karpv1.NodeClaim); ok && event.Type == watch.Added {
				mu.Lock()
				seen[claim.UID] = true
				mu.Unlock()
			}
		}
	}()
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
}
