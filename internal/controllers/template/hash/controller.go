// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hash writes the hashes of ProxmoxTemplates and ProxmoxUnmanagedTemplates to
// annotations.
package hash

import (
	"context"
	"fmt"
	"maps"
	"strings"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Template is a ProxmoxTemplate or a ProxmoxUnmanagedTemplate.
type Template interface {
	client.Object
	Hash() string
}

// Controller writes the hashes of one kind.
type Controller[T Template] struct {
	kube client.Client
	kind T
}

// NewManaged returns a Controller for ProxmoxTemplates.
func NewManaged(kube client.Client) *Controller[*v1alpha1.ProxmoxTemplate] {
	return &Controller[*v1alpha1.ProxmoxTemplate]{kube: kube, kind: &v1alpha1.ProxmoxTemplate{}}
}

// NewUnmanaged returns a Controller for ProxmoxUnmanagedTemplates.
func NewUnmanaged(kube client.Client) *Controller[*v1alpha1.ProxmoxUnmanagedTemplate] {
	return &Controller[*v1alpha1.ProxmoxUnmanagedTemplate]{kube: kube, kind: &v1alpha1.ProxmoxUnmanagedTemplate{}}
}

// Register adds the Controller to the manager.
func (c *Controller[T]) Register(_ context.Context, m manager.Manager) error {
	kind := strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", c.kind), "*v1alpha1.Proxmox"))
	return ctrl.NewControllerManagedBy(m).
		Named(kind + ".hash.proxmox").
		For(c.kind).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile writes the hashes of one object.
func (c *Controller[T]) Reconcile(ctx context.Context, t T) (reconcile.Result, error) {
	annotations := maps.Clone(t.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationTemplateHash] = t.Hash()
	annotations[v1alpha1.AnnotationTemplateHashVersion] = v1alpha1.HashVersion
	if managed, ok := any(t).(*v1alpha1.ProxmoxTemplate); ok {
		annotations[v1alpha1.AnnotationTemplateInPlaceUpdateHash] = managed.InPlaceHash()
	}
	if maps.Equal(annotations, t.GetAnnotations()) {
		return reconcile.Result{}, nil
	}
	stored, _ := t.DeepCopyObject().(client.Object)
	t.SetAnnotations(annotations)
	if err := c.kube.Patch(ctx, t, client.MergeFrom(stored)); client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("writing the hash: %w", err)
	}
	return reconcile.Result{}, nil
}
