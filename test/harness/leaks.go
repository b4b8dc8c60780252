// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Holdings is all that a Proxmox cluster holds at one moment.
type Holdings struct {
	Guests  []Guest
	Volumes []Volume
}

// Holdings reads everything, from every host.
func (a *API) Holdings(ctx context.Context) (Holdings, error) {
	var h Holdings
	var err error
	if h.Guests, err = a.Guests(ctx); err != nil {
		return h, fmt.Errorf("listing what Proxmox holds, %w", err)
	}
	if h.Volumes, err = a.Volumes(ctx); err != nil {
		return h, fmt.Errorf("listing what Proxmox holds, %w", err)
	}
	return h, nil
}

// Leftovers says in words in what Proxmox differs from what it held before:
// what was added and not removed, and which guests were touched.
func (before Holdings) Leftovers(after Holdings) []string {
	var out []string
	index := map[int]Guest{}
	for _, guest := range before.Guests {
		index[guest.VMID] = guest
	}
	for _, guest := range after.Guests {
		was, known := index[guest.VMID]
		delete(index, guest.VMID)
		switch {
		case !known:
			out = append(out, fmt.Sprintf("VM %d (%s, %s) is left on host %s", guest.VMID, guest.Name, guest.Status, guest.Host))
		case !reflect.DeepEqual(was, guest):
			out = append(out, fmt.Sprintf("guest %d (%s) on host %s was touched: %s", guest.VMID, was.Name, was.Host, difference(was, guest)))
		}
	}
	for _, guest := range index {
		out = append(out, fmt.Sprintf("guest %d (%s) is gone from host %s", guest.VMID, guest.Name, guest.Host))
	}
	for _, volume := range after.Volumes {
		if !slices.Contains(before.Volumes, volume) {
			out = append(out, fmt.Sprintf("volume %s is left on host %s", volume.ID, volume.Host))
		}
	}
	for _, volume := range before.Volumes {
		if !slices.Contains(after.Volumes, volume) {
			out = append(out, fmt.Sprintf("volume %s is gone from host %s", volume.ID, volume.Host))
		}
	}
	slices.Sort(out)
	return out
}

func difference(a, b Guest) string {
	switch {
	case a.Host != b.Host:
		return fmt.Sprintf("it moved from %s to %s", a.Host, b.Host)
	case a.Status != b.Status:
		return fmt.Sprintf("it was %s and is %s", a.Status, b.Status)
	}
	for key := range b.Config {
		if !reflect.DeepEqual(a.Config[key], b.Config[key]) {
			return fmt.Sprintf("option %s was %v and is %v", key, a.Config[key], b.Config[key])
		}
	}
	return "an option was removed"
}

// KubeLeftovers says in words what of Nodes a Kubernetes cluster still holds.
func KubeLeftovers(ctx context.Context, kube client.Client) ([]string, error) {
	var out []string
	claims := &karpv1.NodeClaimList{}
	if err := kube.List(ctx, claims); err != nil {
		return nil, fmt.Errorf("listing nodeclaims, %w", err)
	}
	for _, claim := range claims.Items {
		out = append(out, "nodeclaim "+claim.Name+" is left")
	}
	nodes := &corev1.NodeList{}
	if err := kube.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("listing nodes, %w", err)
	}
	for _, node := range nodes.Items {
		out = append(out, "node "+node.Name+" is left")
	}
	tokens, err := JoinTokens(ctx, kube)
	if err != nil {
		return nil, err
	}
	for _, token := range tokens {
		out = append(out, "join token secret "+token.Name+" is left")
	}
	return out, nil
}

// JoinTokens lists the Secrets of join tokens that the controller made.
func JoinTokens(ctx context.Context, kube client.Client) ([]corev1.Secret, error) {
	tokens := &corev1.SecretList{}
	if err := kube.List(ctx, tokens, client.InNamespace(metav1.NamespaceSystem), client.HasLabels{v1alpha1.LabelBootstrapToken}); err != nil {
		return nil, fmt.Errorf("listing join tokens, %w", err)
	}
	return tokens.Items, nil
}
