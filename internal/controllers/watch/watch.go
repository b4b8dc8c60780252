// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch turns changes of the inventory, and other news, into reconciles.
package watch

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// settle gathers a burst of changes into one reconcile.
const settle = 500 * time.Millisecond

// Inventory reconciles every object of a kind when the inventory's view
// changed. The list is only a sample of its type.
func Inventory(ctx context.Context, inv *inventory.Inventory, kube client.Client, sample client.ObjectList) source.Source {
	return Events(inv.Subscribe(ctx), kube, sample)
}

// On reconciles every object of a kind after each event. The list is only a sample
// of its type.
func Events(events <-chan event.TypedGenericEvent[uint64], kube client.Client, sample client.ObjectList) source.Source {
	enqueue := handler.TypedFuncs[uint64, reconcile.Request]{
		GenericFunc: func(ctx context.Context, _ event.TypedGenericEvent[uint64], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			list, ok := sample.DeepCopyObject().(client.ObjectList)
			if !ok {
				return
			}
			if err := kube.List(ctx, list); err != nil {
				log.FromContext(ctx).Error(err, "listing what a change of the inventory concerns")
				return
			}
			// EachListItem fails only when its function does.
			_ = meta.EachListItem(list, func(o runtime.Object) error {
				if object, ok := o.(client.Object); ok {
					queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: object.GetName()}}, settle)
				}
				return nil
			})
		},
	}
	return source.TypedChannel(events, enqueue)
}
