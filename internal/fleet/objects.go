// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// eventSource is the component that Karpenter's events name as their source.
const eventSource = "karpenter"

// Objects are the objects of Kubernetes that a Map shows.
type Objects struct {
	Claims             []karpv1.NodeClaim
	NodePools          []karpv1.NodePool
	NodeClasses        []v1alpha1.ProxmoxNodeClass
	Templates          []v1alpha1.ProxmoxTemplate
	UnmanagedTemplates []v1alpha1.ProxmoxUnmanagedTemplate
	Nodes              []corev1.Node
	Pods               []corev1.Pod
	// Events of Karpenter.
	Events []corev1.Event
}

// ReadObjects lists all objects. Events are listed by their own reader, because the
// controller's cache does not contain them.
func ReadObjects(ctx context.Context, reader, events client.Reader) (Objects, error) {
	claims, pools, classes := &karpv1.NodeClaimList{}, &karpv1.NodePoolList{}, &v1alpha1.ProxmoxNodeClassList{}
	templates, unmanaged := &v1alpha1.ProxmoxTemplateList{}, &v1alpha1.ProxmoxUnmanagedTemplateList{}
	nodes, pods, found := &corev1.NodeList{}, &corev1.PodList{}, &corev1.EventList{}
	for _, list := range []client.ObjectList{claims, pools, classes, templates, unmanaged, nodes, pods} {
		if err := reader.List(ctx, list); err != nil {
			return Objects{}, fmt.Errorf("listing objects of type %T: %w", list, err)
		}
	}
	if err := events.List(ctx, found, client.MatchingFields{"source": eventSource}); err != nil {
		return Objects{}, fmt.Errorf("listing events: %w", err)
	}
	return Objects{
		Claims: claims.Items, NodePools: pools.Items, NodeClasses: classes.Items, Templates: templates.Items, UnmanagedTemplates: unmanaged.Items,
		Nodes: nodes.Items, Pods: pods.Items, Events: found.Items,
	}, nil
}

// Reservations returns what NodeClaims reserve.
func Reservations(view inventory.View, kubeCluster string, claims []karpv1.NodeClaim) []inventory.Reservation {
	var out []inventory.Reservation
	for i := range claims {
		if in, ok := instance.IntentIn(view, kubeCluster, &claims[i]); ok {
			out = append(out, in.Reservation(&claims[i]))
		}
	}
	return out
}
