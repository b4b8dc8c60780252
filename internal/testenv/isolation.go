// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// worldLabel marks whose an object is: worlds share an API server, and most objects
// have no namespace.
const worldLabel = "testenv"

// isolated is a client that sees and makes the objects of one world only.
func isolated(inner client.WithWatch, world string) client.WithWatch {
	return interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			labels := o.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels[worldLabel] = world
			o.SetLabels(labels)
			return c.Create(ctx, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			all := &client.ListOptions{}
			all.ApplyOptions(options)
			client.MatchingLabels{worldLabel: world}.ApplyToList(all)
			wanted := ownIndex(list, all)
			if err := c.List(ctx, list, all); err != nil {
				return err
			}
			return keep(list, wanted)
		},
	})
}

// ownIndex takes a field selector out of the options that only the cache of a
// manager can serve, through the indexes that Karpenter's operator makes. What the
// API server selects by itself stays.
func ownIndex(list client.ObjectList, options *client.ListOptions) fields.Selector {
	switch list.(type) {
	case *karpv1.NodeClaimList, *karpv1.NodePoolList, *corev1.NodeList:
		wanted := options.FieldSelector
		options.FieldSelector = nil
		return wanted
	}
	return nil
}

func keep(list client.ObjectList, wanted fields.Selector) error {
	if wanted == nil {
		return nil
	}
	var kept []runtime.Object
	err := meta.EachListItem(list, func(o runtime.Object) error {
		set, err := indexed(o)
		if err == nil && wanted.Matches(set) {
			kept = append(kept, o)
		}
		return err
	})
	if err != nil {
		return err
	}
	return meta.SetList(list, kept)
}

func indexed(o runtime.Object) (fields.Set, error) {
	switch o := o.(type) {
	case *karpv1.NodeClaim:
		return fields.Set{
			"status.providerID": o.Status.ProviderID, "spec.nodeClassRef.group": o.Spec.NodeClassRef.Group,
			"spec.nodeClassRef.kind": o.Spec.NodeClassRef.Kind, "spec.nodeClassRef.name": o.Spec.NodeClassRef.Name,
		}, nil
	case *karpv1.NodePool:
		ref := o.Spec.Template.Spec.NodeClassRef
		return fields.Set{
			"spec.template.spec.nodeClassRef.group": ref.Group, "spec.template.spec.nodeClassRef.kind": ref.Kind,
			"spec.template.spec.nodeClassRef.name": ref.Name,
		}, nil
	case *corev1.Node:
		return fields.Set{"spec.providerID": o.Spec.ProviderID}, nil
	}
	return nil, fmt.Errorf("no index for %T", o)
}
