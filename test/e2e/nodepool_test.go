// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// nodePool is a kit with a Deployment that runs only on its Nodes.
type nodePool struct {
	*env
	name string
	kit  *harness.Kit
}

// newNodePool creates a kit. change may modify it first.
func (e *env) newNodePool(t *testing.T, name string, change func(*harness.Kit)) *nodePool {
	t.Helper()
	kit, err := harness.NewKit(name, e.plane.Server)
	must(t, err)
	if suite.lab != nil {
		suite.lab.Adapt(kit)
	}
	kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1s")
	kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	if change != nil {
		change(kit)
	}
	must(t, kit.Apply(t.Context(), e.kube))
	return &nodePool{env: e, name: name, kit: kit}
}

// deployPods deploys pods that run only on this NodePool's Nodes.
func (p *nodePool) deployPods(t *testing.T, replicas int32) {
	t.Helper()
	p.deploy(t, replicas, nil)
}

// deploy deploys pods that change may modify.
func (p *nodePool) deploy(t *testing.T, replicas int32, change func(*appsv1.Deployment)) {
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

// scaleToZero deletes all pods. While they exist, Karpenter creates NodeClaims for them.
func (p *nodePool) scaleToZero(t *testing.T) {
	t.Helper()
	must(t, harness.Scale(t.Context(), p.kube, p.name, 0))
	p.waitForPods(t, 0)
}

// claims returns the NodePool's NodeClaims.
func (p *nodePool) claims(ctx context.Context) ([]karpv1.NodeClaim, error) {
	list := &karpv1.NodeClaimList{}
	err := p.kube.List(ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: p.name})
	return list.Items, err
}

// waitForPods waits until all pods of the Deployment are ready.
func (p *nodePool) waitForPods(t *testing.T, want int) {
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
			return fmt.Errorf("%d of %d pods are ready, want %d", ready, len(pods), want)
		}
		return nil
	})
}

// waitForClaim waits until the NodePool has exactly one NodeClaim that meets the condition.
func (p *nodePool) waitForClaim(t *testing.T, what string, is func(*karpv1.NodeClaim) error) *karpv1.NodeClaim {
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

// launched returns an error unless the launch is completed.
func launched(claim *karpv1.NodeClaim) error {
	if claim.Annotations[v1alpha1.AnnotationLaunchCompleted] == "" {
		return fmt.Errorf("claim %s is being launched: %s", claim.Name, claim.Annotations[v1alpha1.AnnotationLaunchProgress])
	}
	return nil
}

// settled returns an error unless the Node is initialized, the launch is completed and the
// boot drive was deleted. After that, the controller does not change the VM.
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

// hasTimeline returns an error unless all steps of the launch are recorded.
func hasTimeline(claim *karpv1.NodeClaim) error {
	progress := instance.ReadProgress(claim)
	for _, phase := range []instance.Phase{
		instance.PhaseStarted, instance.PhaseCertificateRequested, instance.PhaseCertificateApproved, instance.PhaseNodeRegistered,
		instance.PhaseNodeReady, instance.PhaseInitialized,
	} {
		if !progress.HasReached(phase) {
			return fmt.Errorf("the timeline of claim %s has no %s: %s", claim.Name, phase, progress.Encode())
		}
	}
	return nil
}

// node returns a NodeClaim's Node.
func (p *nodePool) node(ctx context.Context, claim *karpv1.NodeClaim) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, p.kube.Get(ctx, client.ObjectKey{Name: claim.Name}, node)
}

// waitForNoTaints waits until a NodeClaim's Node has no taints. Kubernetes can remove that of a Node
// that was not ready after Karpenter has initialized it.
func (p *nodePool) waitForNoTaints(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	p.eventually(t, "node "+claim.Name+" to have no taints", func(ctx context.Context) error {
		node, err := p.node(ctx, claim)
		if err == nil && len(node.Spec.Taints) > 0 {
			err = fmt.Errorf("it has %v", node.Spec.Taints)
		}
		return err
	})
}

// vms returns the NodePool's VMs.
func (p *nodePool) vms(ctx context.Context) ([]harness.Guest, error) {
	guests, err := p.api.Guests(ctx)
	return slices.DeleteFunc(guests, func(g harness.Guest) bool {
		return !g.OwnedBy(p.cluster) || !strings.Contains(g.Notes(), "- NodePool: "+p.name+"\n")
	}), err
}

// deleteClaims deletes the NodePool's NodeClaims without waiting for consolidation, and waits
// until nothing of the given ones remains.
func (p *nodePool) deleteClaims(t *testing.T, claims ...*karpv1.NodeClaim) {
	t.Helper()
	p.scaleToZero(t) // otherwise Karpenter creates another one
	p.eventually(t, "the claims of "+p.name+" to be deleted", func(ctx context.Context) error {
		// If Karpenter sees the deleted claim before the deleted pod, it still creates another one.
		left, err := p.claims(ctx)
		for i := range left {
			err = errors.Join(err, client.IgnoreNotFound(p.kube.Delete(ctx, &left[i])))
		}
		if err != nil || len(left) > 0 {
			return fmt.Errorf("%d claims exist (%w)", len(left), err)
		}
		return nil
	})
	p.waitUntilGone(t, claims...)
}

// waitUntilGone waits until nothing of the NodeClaims remains in Kubernetes and Proxmox.
func (p *nodePool) waitUntilGone(t *testing.T, claims ...*karpv1.NodeClaim) {
	t.Helper()
	p.eventually(t, "everything of "+p.name+" to be deleted", func(ctx context.Context) error {
		left, err := p.claims(ctx)
		if err != nil || len(left) > 0 {
			return fmt.Errorf("%d claims exist (%w)", len(left), err)
		}
		vms, err := p.vms(ctx)
		if err != nil || len(vms) > 0 {
			return fmt.Errorf("%d VMs exist (%w)", len(vms), err)
		}
		for _, claim := range claims {
			if _, err := p.node(ctx, claim); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Errorf("node %s exists (%w)", claim.Name, err)
			}
		}
		return p.noBootData(ctx, claims...)
	})
}

// noBootData returns an error if an ISO, disk or join token of the NodeClaims exists.
func (p *nodePool) noBootData(ctx context.Context, claims ...*karpv1.NodeClaim) error {
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
				return fmt.Errorf("volume %s exists on host %s", volume.ID, volume.Host)
			}
		}
		for _, token := range tokens {
			if strings.Contains(fmt.Sprint(token.Labels), string(claim.UID)) {
				return fmt.Errorf("join token %s exists", token.Name)
			}
		}
	}
	return nil
}
