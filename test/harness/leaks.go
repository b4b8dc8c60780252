// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// Holdings are the guests and volumes of a Proxmox cluster at one moment.
type Holdings struct {
	Guests  []Guest
	Volumes []Volume
}

// Holdings reads the guests and volumes of all online hosts.
func (a *API) Holdings(ctx context.Context) (Holdings, error) {
	guests, err := a.Guests(ctx)
	if err != nil {
		return Holdings{}, fmt.Errorf("listing holdings: %w", err)
	}
	volumes, err := a.Volumes(ctx)
	if err != nil {
		return Holdings{}, fmt.Errorf("listing holdings: %w", err)
	}
	return Holdings{Guests: guests, Volumes: volumes}, nil
}

// Diff describes how after differs from before: leaked VMs and volumes, changed guests, and
// guests and volumes that are gone.
func (before Holdings) Diff(after Holdings) []string {
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
			out = append(out, fmt.Sprintf("VM %d (%s, %s) leaked on host %s", guest.VMID, guest.Name, guest.Status, guest.Host))
		case !reflect.DeepEqual(was, guest):
			out = append(out, fmt.Sprintf("guest %d (%s) on host %s changed: %s", guest.VMID, was.Name, was.Host, difference(was, guest)))
		}
	}
	for _, guest := range index {
		out = append(out, fmt.Sprintf("guest %d (%s) is gone from host %s", guest.VMID, guest.Name, guest.Host))
	}
	for _, volume := range after.Volumes {
		if !slices.Contains(before.Volumes, volume) {
			out = append(out, fmt.Sprintf("volume %s leaked on host %s", volume.ID, volume.Host))
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

// LeakedObjects describes the NodeClaims, Nodes and join tokens that a Kubernetes cluster
// still has.
func LeakedObjects(ctx context.Context, kube client.Client) (out []string, err error) {
	claims, nodes := &karpv1.NodeClaimList{}, &corev1.NodeList{}
	if err := errors.Join(kube.List(ctx, claims), kube.List(ctx, nodes)); err != nil {
		return nil, fmt.Errorf("listing NodeClaims and Nodes: %w", err)
	}
	for _, claim := range claims.Items {
		out = append(out, "nodeclaim "+claim.Name+" leaked")
	}
	for _, node := range nodes.Items {
		out = append(out, "node "+node.Name+" leaked")
	}
	tokens, err := JoinTokens(ctx, kube)
	for _, token := range tokens {
		out = append(out, "join token secret "+token.Name+" leaked")
	}
	return out, err
}

// JoinTokens returns the Secrets of join tokens that the controller created.
func JoinTokens(ctx context.Context, kube client.Client) ([]corev1.Secret, error) {
	tokens := &corev1.SecretList{}
	if err := kube.List(ctx, tokens, client.InNamespace(metav1.NamespaceSystem), client.HasLabels{v1alpha1.LabelBootstrapToken}); err != nil {
		return nil, fmt.Errorf("listing join tokens: %w", err)
	}
	return tokens.Items, nil
}
