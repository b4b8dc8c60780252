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
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Again is when a controller looks again at what no watch announces: Secrets, what an administrator
// changes on Proxmox, a capacity.
const Again = 20 * time.Second

// Soon is when a controller continues after another operation of the same process.
const Soon = time.Second

// debounceDelay combines a burst of changes into one reconcile.
const debounceDelay = 500 * time.Millisecond

// Inventory returns a source that reconciles every object of a kind when the inventory
// changed. The sample only determines the type of the list.
func Inventory(ctx context.Context, inv *inventory.Inventory, kube client.Client, sample client.ObjectList) source.Source {
	return Events(inv.Subscribe(ctx), kube, sample)
}

// Hosts returns a source that reconciles the Claims on Hosts of which a property changed. Other
// changes of the inventory are frequent. A Host has no property while it is unknown, or its Cluster
// is unavailable.
func Hosts(ctx context.Context, inv *inventory.Inventory, kube client.Client, hostOf func(*karpv1.NodeClaim) (inventory.HostState, bool), property func(inventory.HostState) string) source.Source {
	read := func() map[observed.HostName]string {
		view, out := inv.View(), map[observed.HostName]string{}
		for _, host := range view.Hosts() {
			if view.Unavailable(host.Region) == nil {
				out[observed.HostName{Region: host.Region, Host: host.Name}] = property(host)
			}
		}
		return out
	}
	events, before := inv.Subscribe(ctx), read()
	return source.TypedChannel(events, handler.TypedFuncs[uint64, reconcile.Request]{
		GenericFunc: func(ctx context.Context, _ inventory.Event, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			now, claims := read(), &karpv1.NodeClaimList{}
			if maps.Equal(before, now) {
				return
			}
			if err := kube.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
				log.FromContext(ctx).Error(err, "listing NodeClaims to reconcile failed")
				return
			}
			for i := range claims.Items {
				host, _ := hostOf(&claims.Items[i])
				name := observed.HostName{Region: host.Region, Host: host.Name}
				was, wasKnown := before[name]
				if is, isKnown := now[name]; is != was || isKnown != wasKnown {
					queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: claims.Items[i].Name}}, debounceDelay)
				}
			}
			before = now
		},
	})
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
