// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// pool is a kit of a test's own, with a deployment that only runs there.
type pool struct {
	*world
	name string
	kit  *harness.Kit
}

// newPool prepares a kit; change may bend it before it is applied.
func (w *world) newPool(t *testing.T, name string, change func(*harness.Kit)) *pool {
	t.Helper()
	kit, err := harness.NewKit(name, w.plane.Server)
	must(t, err)
	if suite.lab != nil {
		suite.lab.Adapt(kit)
	}
	kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1s")
	kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	if change != nil {
		change(kit)
	}
	must(t, kit.Apply(t.Context(), w.kube))
	return &pool{world: w, name: name, kit: kit}
}

// run deploys pods that only this pool's Nodes can take.
func (p *pool) run(t *testing.T, replicas int32) {
	t.Helper()
	p.deploy(t, replicas, nil)
}

// deploy is run with pods of another kind.
func (p *pool) deploy(t *testing.T, replicas int32, change func(*appsv1.Deployment)) {
	t.Helper()
	d := harness.Deployment(p.name, replicas)
	d.Spec.Template.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: p.name}
	for _, taint := range p.kit.Pool.Spec.Template.Spec.Taints {
		d.Spec.Template.Spec.Tolerations = append(d.Spec.Template.Spec.Tolerations, corev1.Toleration{
			Key: taint.Key, Value: taint.Value, Operator: corev1.TolerationOpEqual, Effect: taint.Effect,
		})
	}
	if change != nil {
		change(d)
	}
	must(t, p.kube.Create(t.Context(), d))
}

// scaleToZero takes all pods away.
func (p *pool) scaleToZero(t *testing.T) {
	t.Helper()
	must(t, harness.Scale(t.Context(), p.kube, p.name, 0))
}

// claims of the pool.
func (p *pool) claims(ctx context.Context) ([]karpv1.NodeClaim, error) {
	list := &karpv1.NodeClaimList{}
	err := p.kube.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: p.name})
	return list.Items, err
}

// podsRun waits for all pods of the pool's deployment.
func (p *pool) podsRun(t *testing.T, want int) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("%d running pods of %s", want, p.name), func(ctx context.Context) error {
		pods, err := harness.Pods(ctx, p.kube, p.name)
		if err != nil {
			return err
		}
		ready := 0
		for i := range pods {
			if harness.PodReady(&pods[i]) {
				ready++
			}
		}
		if ready != want || len(pods) != want {
			return fmt.Errorf("%d of %d pods run, want %d", ready, len(pods), want)
		}
		return nil
	})
}

// onlyClaim waits for the pool to have exactly one claim that is as wanted.
func (p *pool) onlyClaim(t *testing.T, what string, is func(*karpv1.NodeClaim) error) *karpv1.NodeClaim {
	t.Helper()
	var found *karpv1.NodeClaim
	p.eventually(t, "a claim of "+p.name+" that "+what, func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		if err != nil {
			return err
		}
		if len(claims) != 1 {
			return fmt.Errorf("there are %d claims, want 1", len(claims))
		}
		found = &claims[0]
		return is(found)
	})
	return found
}

// launched: the VM runs, and the launch is over.
func launched(claim *karpv1.NodeClaim) error {
	if claim.Annotations[v1alpha1.AnnotationLaunchCompleted] == "" {
		return fmt.Errorf("the launch of claim %s goes on: %s", claim.Name, claim.Annotations[v1alpha1.AnnotationLaunchProgress])
	}
	return nil
}

// settled: the Node is initialized, the launch is over and the boot drive was
// taken back, so that from here on the controller leaves the VM alone.
func settled(claim *karpv1.NodeClaim) error {
	if c := claim.StatusConditions().Get(karpv1.ConditionTypeInitialized); !c.IsTrue() {
		return fmt.Errorf("claim %s is not initialized: %s", claim.Name, c.Message)
	}
	for _, key := range []string{v1alpha1.AnnotationLaunchCompleted, v1alpha1.AnnotationBootDataStatus} {
		if claim.Annotations[key] == "" {
			return fmt.Errorf("claim %s has no annotation %s yet", claim.Name, key)
		}
	}
	return nil
}

// node of a claim.
func (p *pool) node(ctx context.Context, claim *karpv1.NodeClaim) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, p.kube.Get(ctx, client.ObjectKey{Name: claim.Name}, node)
}

// vms of the pool.
func (p *pool) vms(ctx context.Context) ([]harness.Guest, error) {
	guests, err := p.api.Guests(ctx)
	return slices.DeleteFunc(guests, func(g harness.Guest) bool {
		return !g.OwnedBy(p.cluster) || !strings.Contains(g.Notes(), "nodepool="+p.name+",")
	}), err
}

// giveBack deletes claims without waiting for consolidation to find them empty.
func (p *pool) giveBack(t *testing.T, claims ...*karpv1.NodeClaim) {
	t.Helper()
	p.scaleToZero(t) // else Karpenter makes another one at once
	for _, claim := range claims {
		must(t, client.IgnoreNotFound(p.kube.Delete(t.Context(), claim)))
	}
	p.nothingLeft(t, claims...)
}

// nothingLeft waits until nothing of the claims is left on either side.
func (p *pool) nothingLeft(t *testing.T, claims ...*karpv1.NodeClaim) {
	t.Helper()
	p.eventually(t, "nothing of "+p.name+" to be left", func(ctx context.Context) error {
		left, err := p.claims(ctx)
		if err != nil || len(left) > 0 {
			return fmt.Errorf("%d claims are left (%w)", len(left), err)
		}
		vms, err := p.vms(ctx)
		if err != nil || len(vms) > 0 {
			return fmt.Errorf("%d VMs are left (%w)", len(vms), err)
		}
		for _, claim := range claims {
			if _, err := p.node(ctx, claim); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Errorf("node %s is left (%w)", claim.Name, err)
			}
		}
		return p.noBootData(ctx, claims...)
	})
}

// noBootData: neither ISO nor disk nor join token of the claims is there.
func (p *pool) noBootData(ctx context.Context, claims ...*karpv1.NodeClaim) error {
	volumes, err := p.api.Volumes(ctx)
	if err != nil {
		return err
	}
	tokens, err := harness.JoinTokens(ctx, p.kube)
	if err != nil {
		return err
	}
	for _, claim := range claims {
		for _, volume := range volumes {
			if strings.Contains(volume.ID, string(claim.UID)) {
				return fmt.Errorf("volume %s is left on host %s", volume.ID, volume.Host)
			}
		}
		for _, token := range tokens {
			if strings.Contains(fmt.Sprint(token.Labels), string(claim.UID)) {
				return fmt.Errorf("join token %s is left", token.Name)
			}
		}
	}
	return nil
}
