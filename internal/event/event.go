// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package event creates events for Karpenter's recorder. The recorder drops an event if it published
// one about the same object with the same reason and details a short time ago.
package event

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"
)

// Normal returns an event about something that was expected.
func Normal(object client.Object, reason, message string, details ...string) events.Event {
	return events.Event{
		InvolvedObject: object, Type: corev1.EventTypeNormal, Reason: reason, Message: message,
		DedupeValues: append([]string{string(object.GetUID())}, details...),
	}
}

// Warning returns an event about something that a user may have to fix.
func Warning(object client.Object, reason, message string, details ...string) events.Event {
	event := Normal(object, reason, message, details...)
	event.Type = corev1.EventTypeWarning
	return event
}

// Interval is how often an event about something that lasts is repeated.
const Interval = 15 * time.Minute

// Lasting returns an event about something that lasts: it is published once per Interval.
func Lasting(event events.Event) events.Event {
	event.DedupeTimeout = Interval
	return event
}
