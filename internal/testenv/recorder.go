// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"strings"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"
)

// Recorder records events.
type Recorder struct {
	mu     sync.Mutex
	events []events.Event
}

var _ events.Recorder = (*Recorder)(nil)

// Publish records events.
func (r *Recorder) Publish(published ...events.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, published...)
}

// Messages returns the messages of all events with a reason.
func (r *Recorder) Messages(reason string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, event := range r.events {
		if event.Reason == reason {
			out = append(out, event.Message)
		}
	}
	return out
}

// Emitted returns the messages that core's recorder emits for the events with a reason: those that
// have the same DedupeValues are emitted once.
func (r *Recorder) Emitted(reason string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	emitted := map[string]bool{}
	for _, event := range r.events {
		key := strings.Join(event.DedupeValues, "-")
		if event.Reason == reason && !emitted[key] {
			emitted[key] = true
			out = append(out, event.Message)
		}
	}
	return out
}

// Reasons returns the reasons of all events on an object, in order.
func (r *Recorder) Reasons(o client.Object) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, event := range r.events {
		if involved, ok := event.InvolvedObject.(client.Object); ok && involved.GetName() == o.GetName() && involved.GetUID() == o.GetUID() {
			out = append(out, event.Reason)
		}
	}
	return out
}
