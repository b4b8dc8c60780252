// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/event"
)

// Event tells that the View changed; the object is its generation. Its type fits
// source.TypedChannel, so that a controller can watch the Inventory.
type Event = event.TypedGenericEvent[uint64]

// Subscribe gives a channel that gets an Event after each relevant change, until
// the context ends; then it is closed. Events that were not yet received merge
// into one: what counts is the View at the time of reading.
func (i *Inventory) Subscribe(ctx context.Context) <-chan Event {
	events := make(chan Event, 1)
	i.mu.Lock()
	defer i.mu.Unlock()
	id := i.nextSubscriber
	i.nextSubscriber++
	i.subscribers[id] = events
	context.AfterFunc(ctx, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		delete(i.subscribers, id)
		close(events)
	})
	return events
}

// notify wakes the subscribers. The caller holds the lock.
func (i *Inventory) notify() {
	for _, events := range i.subscribers {
		select {
		case events <- Event{Object: i.generation}:
		default:
		}
	}
}
