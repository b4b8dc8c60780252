// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch triggers reconciles after changes of the inventory and other events.
package watch

import (
	"context"
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// debounceDelay combines a burst of changes into one reconcile.
const debounceDelay = 500 * time.Millisecond

// Inventory returns a source that reconciles every object of a kind when the inventory
// changed. The sample only determines the type of the list.
func Inventory(ctx context.Context, inv *inventory.Inventory, kube client.Client, sample client.ObjectList) source.Source {
	return Events(inv.Subscribe(ctx), kube, sample)
}

// Hosts returns a channel that receives an event when a property of a Host changed. Other
// changes of the inventory are frequent, and each event reconciles all Claims. The property
// is empty for most Hosts.
func Hosts(ctx context.Context, inv *inventory.Inventory, property func(inventory.HostState) string) <-chan inventory.Event {
	read := func() map[inventory.HostName]string {
		out := map[inventory.HostName]string{}
		for _, host := range inv.View().Hosts() {
			if value := property(host); value != "" {
				out[inventory.HostName{Region: host.Region, Host: host.Name}] = value
			}
		}
		return out
	}
	events, out := inv.Subscribe(ctx), make(chan inventory.Event, 1)
	before := read()
	go func() {
		defer close(out)
		for event := range events {
			now := read()
			if maps.Equal(before, now) {
				continue
			}
			before = now
			select {
			case out <- event:
			default: // the last event was not received yet
			}
		}
	}()
	return out
}

// Deletions returns a predicate that passes only deletions, for controllers that wait until
// an object is gone.
func Deletions() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}

// Events returns a source that reconciles every object of a kind after each event. The
// sample only determines the type of the list.
func Events(events <-chan event.TypedGenericEvent[uint64], kube client.Client, sample client.ObjectList) source.Source {
	enqueue := handler.TypedFuncs[uint64, reconcile.Request]{
		GenericFunc: func(ctx context.Context, _ event.TypedGenericEvent[uint64], queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			list, ok := sample.DeepCopyObject().(client.ObjectList)
			if !ok {
				return
			}
			if err := kube.List(ctx, list); err != nil {
				log.FromContext(ctx).Error(err, "listing objects to reconcile failed")
				return
			}
			// EachListItem fails only when its function does.
			_ = meta.EachListItem(list, func(o runtime.Object) error {
				if object, ok := o.(client.Object); ok {
					queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: object.GetName()}}, debounceDelay)
				}
				return nil
			})
		},
	}
	return source.TypedChannel(events, enqueue)
}
