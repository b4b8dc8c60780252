// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// ErrOtherProvider means that a NodePool belongs to another provider of Karpenter.
var ErrOtherProvider = errors.New("it belongs to another provider")

// NewClaim returns the NodeClaim that the NodePool would create for the pod. It returns an
// error if the pool belongs to another provider, is static or being deleted, or does not
// match the pod.
func NewClaim(pod *corev1.Pod, pool *karpv1.NodePool) (*karpv1.NodeClaim, error) {
	template := pool.Spec.Template
	ref := template.Spec.NodeClassRef
	switch {
	case ref == nil || ref.Group != v1alpha1.Group:
		return nil, ErrOtherProvider
	case !pool.DeletionTimestamp.IsZero():
		return nil, errors.New("it is being deleted")
	case pool.Spec.Replicas != nil:
		return nil, errors.New("it is static, so it creates no nodes for pods")
	}
	if err := scheduling.Taints(template.Spec.Taints).ToleratesPod(pod); err != nil {
		return nil, err
	}
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(template.Spec.Requirements...)
	requirements.Add(scheduling.NewLabelRequirements(template.Labels).Values()...)
	requirements.Add(scheduling.NewRequirement(karpv1.NodePoolLabelKey, corev1.NodeSelectorOpIn, pool.Name))
	podRequirements := scheduling.NewStrictPodRequirements(pod)
	if err := requirements.Compatible(podRequirements, scheduling.AllowUndefinedWellKnownLabels); err != nil {
		return nil, err
	}
	requirements.Add(podRequirements.Values()...)
	claim := &karpv1.NodeClaim{}
	claim.Name, claim.Labels = pod.Name, map[string]string{karpv1.NodePoolLabelKey: pool.Name}
	claim.Spec.NodeClassRef = ref
	claim.Spec.Requirements = requirements.NodeSelectorRequirements()
	claim.Spec.Resources.Requests = resources.RequestsForPods(pod)
	return claim, nil
}

// ReadClass returns the ProxmoxNodeClass of a NodePool of this provider, and why the pool
// cannot use it; empty if it can. The class is nil if it does not exist.
func ReadClass(ctx context.Context, reader client.Reader, pool *karpv1.NodePool) (class *v1alpha1.ProxmoxNodeClass, problem string, err error) {
	name := pool.Spec.Template.Spec.NodeClassRef.Name
	class = &v1alpha1.ProxmoxNodeClass{}
	switch err := reader.Get(ctx, types.NamespacedName{Name: name}, class); {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("ProxmoxNodeClass %s does not exist; create it, or change spec.template.spec.nodeClassRef of the NodePool", name), nil
	case err != nil:
		return nil, "", fmt.Errorf("reading ProxmoxNodeClass %s of NodePool %s: %w", name, pool.Name, err)
	}
	if ready := class.StatusConditions().Get(status.ConditionReady); !ready.IsTrue() {
		return class, fmt.Sprintf("ProxmoxNodeClass %s is not ready: %s", name, ready.Message), nil
	}
	return class, "", nil
}
