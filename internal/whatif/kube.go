// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	clientgotesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	karpv1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// keepFinalizer is on objects that were being deleted: the fake API accepts no such object
// without a finalizer.
const keepFinalizer = "karpenter.proxmox.sinextra.dev/whatif"

// newKube returns a fake API with copies of the objects. Names and UIDs of new objects are
// numbered, so a plan is repeatable.
func newKube(objects []client.Object) client.Client {
	// The default tracker creates a REST mapper for each write.
	tracker := clientgotesting.NewObjectTracker(scheme.Scheme, serializer.NewCodecFactory(scheme.Scheme).UniversalDecoder())
	builder := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjectTracker(tracker).
		WithStatusSubresource(&karpv1.NodeClaim{}, &karpv1.NodePool{}, &v1alpha1.ProxmoxNodeClass{}, &karpv1alpha1.NodeOverlay{})
	for _, index := range indexes() {
		builder = builder.WithIndex(index.object, index.field, index.values)
	}
	for _, o := range objects {
		object, ok := o.DeepCopyObject().(client.Object)
		if !ok {
			continue // every API object is one
		}
		if !object.GetDeletionTimestamp().IsZero() && len(object.GetFinalizers()) == 0 {
			object.SetFinalizers([]string{keepFinalizer})
		}
		builder = builder.WithObjects(object)
	}
	created := 0
	return interceptor.NewClient(builder.Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			created++
			if o.GetUID() == "" {
				o.SetUID(types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", created)))
				o.SetCreationTimestamp(metav1.NewTime(time.Now()))
			}
			if o.GetName() == "" {
				o.SetName(fmt.Sprintf("%s%d", o.GetGenerateName(), created))
			}
			return c.Create(ctx, o, options...)
		},
	})
}

// index is a field by which core's operator lists objects.
type index struct {
	object client.Object
	field  string
	values client.IndexerFunc
}

func indexes() []index {
	claim := func(field string, value func(*karpv1.NodeClaim) string) index {
		return indexOf(&karpv1.NodeClaim{}, field, value)
	}
	pool := func(field string, value func(*karpv1.NodeClassReference) string) index {
		return indexOf(&karpv1.NodePool{}, "spec.template.spec.nodeClassRef."+field, func(p *karpv1.NodePool) string { return value(p.Spec.Template.Spec.NodeClassRef) })
	}
	return []index{
		indexOf(&corev1.Pod{}, "spec.nodeName", func(p *corev1.Pod) string { return p.Spec.NodeName }),
		indexOf(&corev1.Node{}, "spec.providerID", func(n *corev1.Node) string { return n.Spec.ProviderID }),
		indexOf(&storagev1.VolumeAttachment{}, "spec.nodeName", func(a *storagev1.VolumeAttachment) string { return a.Spec.NodeName }),
		claim("status.providerID", func(c *karpv1.NodeClaim) string { return c.Status.ProviderID }),
		claim("spec.nodeClassRef.group", func(c *karpv1.NodeClaim) string { return c.Spec.NodeClassRef.Group }),
		claim("spec.nodeClassRef.kind", func(c *karpv1.NodeClaim) string { return c.Spec.NodeClassRef.Kind }),
		claim("spec.nodeClassRef.name", func(c *karpv1.NodeClaim) string { return c.Spec.NodeClassRef.Name }),
		pool("group", func(r *karpv1.NodeClassReference) string { return r.Group }),
		pool("kind", func(r *karpv1.NodeClassReference) string { return r.Kind }),
		pool("name", func(r *karpv1.NodeClassReference) string { return r.Name }),
	}
}

func indexOf[T client.Object](object T, field string, value func(T) string) index {
	return index{object, field, func(o client.Object) []string {
		typed, ok := o.(T)
		if !ok {
			return nil
		}
		return []string{value(typed)}
	}}
}
