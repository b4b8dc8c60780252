// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"net/http"
	"reflect"

	"github.com/google/uuid"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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
			return listIndexed(ctx, c, list, append(options, client.MatchingLabels{envLabel: env}))
		},
	})
}

// listIndexed lists with a selector of the fields of takeIndexedFields.
func listIndexed(ctx context.Context, c client.WithWatch, list client.ObjectList, options []client.ListOption) error {
	all := (&client.ListOptions{}).ApplyOptions(options)
	selector := takeIndexedFields(list, all)
	if err := c.List(ctx, list, all); err != nil {
		return err
	}
	return filter(list, selector)
}

// likeServer returns a fake client that selects by the fields of takeIndexedFields, and that gives
// objects what an API server gives them: a UID, the time of their creation and a generation. It returns
// the errors of an API server for JSON patches that do not apply, and deletions of another UID.
func likeServer(inner client.WithWatch) client.WithWatch {
	return interceptor.NewClient(inner, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if o.GetUID() == "" {
				o.SetUID(types.UID(uuid.NewString()))
			}
			if created := o.GetCreationTimestamp(); created.IsZero() {
				o.SetCreationTimestamp(metav1.Now())
			}
			o.SetGeneration(max(o.GetGeneration(), 1))
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return countGenerations(ctx, c, o, func() error { return c.Update(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			return countGenerations(ctx, c, o, func() error { return invalidPatch(o, patch, c.Patch(ctx, o, patch, options...)) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if err := checkUID(ctx, c, o, options); err != nil {
				return err
			}
			return c.Delete(ctx, o, options...)
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			return listIndexed(ctx, c, list, options)
		},
	})
}

// countGenerations increments the generation of an object if a write changes its spec.
func countGenerations(ctx context.Context, c client.Client, o client.Object, write func() error) error {
	spec := func(o client.Object) reflect.Value { return reflect.ValueOf(o).Elem().FieldByName("Spec") }
	before, ok := o.DeepCopyObject().(client.Object)
	if !ok || !spec(o).IsValid() || c.Get(ctx, client.ObjectKeyFromObject(o), before) != nil {
		return write()
	}
	o.SetGeneration(before.GetGeneration())
	if err := write(); err != nil || equality.Semantic.DeepEqual(spec(before).Interface(), spec(o).Interface()) {
		return err
	}
	o.SetGeneration(before.GetGeneration() + 1)
	return client.IgnoreNotFound(c.Update(ctx, o)) // it may have been deleted with its last finalizer
}

// invalidPatch returns the error of an API server for a JSON patch of which an operation failed.
func invalidPatch(o client.Object, patch client.Patch, err error) error {
	if err == nil || patch.Type() != types.JSONPatchType || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return err
	}
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", schema.GroupResource{}, o.GetName(), err.Error(), 0, true)
}

// checkUID returns a conflict if a deletion requires another UID than that of the stored object.
func checkUID(ctx context.Context, c client.Client, o client.Object, options []client.DeleteOption) error {
	all := &client.DeleteOptions{}
	all.ApplyOptions(options)
	stored, ok := o.DeepCopyObject().(client.Object)
	if !ok || all.Preconditions == nil || all.Preconditions.UID == nil {
		return nil
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(o), stored); err != nil {
		return client.IgnoreNotFound(err) // the deletion reports it
	}
	if uid := *all.Preconditions.UID; uid != stored.GetUID() {
		return apierrors.NewConflict(schema.GroupResource{}, o.GetName(), fmt.Errorf("the UID is %s, not %s", stored.GetUID(), uid))
	}
	return nil
}

// takeIndexedFields removes a field selector from the options that only the cache of a
// manager supports, by the indexes of Karpenter's operator, and that of the Pods of a Node. Other
// selectors that the API server supports stay.
func takeIndexedFields(list client.ObjectList, options *client.ListOptions) fields.Selector {
	switch list.(type) {
	case *karpv1.NodeClaimList, *karpv1.NodePoolList, *corev1.NodeList, *corev1.PodList,
		*storagev1.VolumeAttachmentList, *certificatesv1.CertificateSigningRequestList:
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
	case *corev1.Pod:
		return fields.Set{"spec.nodeName": o.Spec.NodeName}, nil
	case *storagev1.VolumeAttachment:
		return fields.Set{"spec.nodeName": o.Spec.NodeName}, nil
	case *certificatesv1.CertificateSigningRequest:
		return fields.Set{"joiningNode": instance.JoiningNode(o)}, nil
	}
	return nil, fmt.Errorf("no index for %T", o)
}
