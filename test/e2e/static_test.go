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

// TestStaticPools covers NodePools with a fixed number of Nodes.
func TestStaticPools(t *testing.T) {
	t.Parallel()
	e := newEnv(t, setup{hosts: 4, featureGates: "StaticCapacity=true"})
	runShared(t, map[string]func(*testing.T){"replicas": e.staticReplicas, "insufficient_capacity": e.insufficientCapacity})
}

func (e *env) staticReplicas(t *testing.T) {
	needs(t, guestsThatJoin(), capacity(6))
	p := e.newStaticNodePool(t, "fixed", "c1.1VCPU-2GB", 3)
	p.waitForNodes(t, 3)
	p.setReplicas(t, 5)
	claims := p.waitForNodes(t, 5)

	vms, err := p.vms(t.Context())
	must(t, err)
	i := slices.IndexFunc(vms, func(vm harness.Guest) bool { return vm.Name == claims[0].Name })
	if i < 0 {
		t.Fatalf("claim %s has no VM among %v", claims[0].Name, vmids(vms))
	}
	must(t, e.api.Destroy(t.Context(), vms[i]))
	p.waitForDeletion(t, &claims[0])
	p.waitForNodes(t, 5)

	p.setReplicas(t, 1)
	p.waitForNodes(t, 1)
	p.setReplicas(t, 0)
	p.waitForNodes(t, 0)
	p.waitUntilGone(t)
}

// insufficientCapacity requests ten large VMs where each of the four hosts has capacity for
// one. Core recreates a failed claim immediately, without backoff.
func (e *env) insufficientCapacity(t *testing.T) {
	needs(t, simulator("it knows the capacity of the hosts"))
	const replicas, fitting = 10, 4
	created := e.countClaims(t, "toomany")
	p := e.newStaticNodePool(t, "toomany", "c1.8VCPU-16GB", replicas)
	waiting := p.waitForInitialized(t, replicas, fitting)
	for _, claim := range waiting {
		message := p.waitForEvent(t, claim, "WaitingForCapacity")
		for _, host := range []string{"pve1", "pve2", "pve3", "pve4", "CPU"} {
			if !strings.Contains(message, host) {
				t.Errorf("the event of claim %s does not contain %s: %s", claim, host, message)
			}
		}
	}
	// These pods run on the four nodes, so scaling down removes the other claims.
	p.deployPods(t, fitting)
	p.waitForPods(t, fitting)

	before, window := created(), 15*time.Second
	time.Sleep(window) // a loop would create hundreds
	if after := created(); after-before > replicas-fitting {
		t.Errorf("%d claims were created within %s for %d that wait, want at most one each", after-before, window, replicas-fitting)
	}
	if total := created(); total > 2*replicas {
		t.Errorf("%d claims were created for %d replicas", total, replicas)
	}
	if vms, err := p.vms(t.Context()); err != nil || len(vms) != fitting {
		t.Errorf("there are VMs %v (%v), want %d", vmids(vms), err, fitting)
	}

	p.setReplicas(t, fitting)
	p.waitForNodes(t, fitting)
	p.waitForPods(t, fitting)
	p.scaleToZero(t)
	p.setReplicas(t, 0)
	p.waitForNodes(t, 0)
	p.waitUntilGone(t)
}

// newStaticNodePool creates a NodePool with a fixed number of Nodes of one instance type.
func (e *env) newStaticNodePool(t *testing.T, name, instanceType string, replicas int64) *nodePool {
	t.Helper()
	return e.newNodePool(t, name, func(kit *harness.Kit) {
		kit.Pool.Spec.Replicas = &replicas
		kit.Pool.Spec.Limits = nil // static NodePools are limited by their replicas
		kit.Pool.Spec.Template.Spec.Requirements = append(kit.Pool.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{instanceType},
		})
	})
}

func (p *nodePool) setReplicas(t *testing.T, n int64) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n)
	must(t, p.kube.Patch(t.Context(), &karpv1.NodePool{ObjectMeta: p.kit.Pool.ObjectMeta}, client.RawPatch(types.MergePatchType, patch)))
}

// waitForNodes waits for exactly so many NodeClaims, all of them settled.
func (p *nodePool) waitForNodes(t *testing.T, want int) []karpv1.NodeClaim {
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

// waitForInitialized waits for so many NodeClaims of which some are settled, and returns the
// names of the others.
func (p *nodePool) waitForInitialized(t *testing.T, all, want int) (others []string) {
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
			return fmt.Errorf("found %d claims, %d without a node", len(claims), len(others))
		}
		return nil
	})
	return others
}

// waitForDeletion waits until a NodeClaim is deleted.
func (p *nodePool) waitForDeletion(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	// The controller waits two minutes before it considers the VM of a new claim missing.
	p.within(t, 2*time.Minute+timeout(), "claim "+claim.Name+" to be deleted", func(ctx context.Context) error {
		now := &karpv1.NodeClaim{}
		err := p.kube.Get(ctx, client.ObjectKeyFromObject(claim), now)
		if err == nil {
			err = fmt.Errorf("it still exists, deleted at %v", now.DeletionTimestamp)
		}
		return client.IgnoreNotFound(err)
	})
}

// countClaims returns a function that returns how many NodeClaims of a NodePool were created
// since this call.
func (e *env) countClaims(t *testing.T, pool string) func() int {
	t.Helper()
	watcher, err := e.kube.Watch(t.Context(), &karpv1.NodeClaimList{}, client.MatchingLabels{karpv1.NodePoolLabelKey: pool})
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
