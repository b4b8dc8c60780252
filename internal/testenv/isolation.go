// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// envLabel marks the objects of an Env: all Envs share an API server, and most objects
// have no namespace.
const envLabel = "testenv"

// isolated returns a client that lists and creates only objects of one Env.
func isolated(inner client.WithWatch, env string) client.WithWatch {
	return interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			labels := o.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels[envLabel] = env
			o.SetLabels(labels)
			return c.Create(ctx, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			all := &client.ListOptions{}
			all.ApplyOptions(options)
			client.MatchingLabels{envLabel: env}.ApplyToList(all)
			selector := takeIndexedFields(list, all)
			if err := c.List(ctx, list, all); err != nil {
				return err
			}
			return filter(list, selector)
		},
	})
}

// takeIndexedFields removes a field selector from the options that only the cache of a
// manager supports, by the indexes of Karpenter's operator. Selectors that the API
// server supports stay.
func takeIndexedFields(list client.ObjectList, options *client.ListOptions) fields.Selector {
	switch list.(type) {
	case *karpv1.NodeClaimList, *karpv1.NodePoolList, *corev1.NodeList, *storagev1.VolumeAttachmentList, *certificatesv1.CertificateSigningRequestList:
		selector := options.FieldSelector
		options.FieldSelector = nil
		return selector
	}
	return nil
}

func filter(list client.ObjectList, selector fields.Selector) error {
	if selector == nil {
		return nil
	}
	var kept []runtime.Object
	err := meta.EachListItem(list, func(o runtime.Object) error {
		set, err := indexedFields(o)
		if err == nil && selector.Matches(set) {
			kept = append(kept, o)
		}
		return err
	})
	if err != nil {
		return err
	}
	return meta.SetList(list, kept)
}

func indexedFields(o runtime.Object) (fields.Set, error) {
	switch o := o.(type) {
	case *karpv1.NodeClaim:
		return fields.Set{
			"metadata.uid": string(o.UID), "status.providerID": o.Status.ProviderID, "spec.nodeClassRef.group": o.Spec.NodeClassRef.Group,
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
	case *storagev1.VolumeAttachment:
		return fields.Set{"spec.nodeName": o.Spec.NodeName}, nil
	case *certificatesv1.CertificateSigningRequest:
		return fields.Set{"joiningNode": instance.JoiningNode(o)}, nil
	}
	return nil, fmt.Errorf("no index for %T", o)
}
