// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package declared

import (
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// SleepState is the state of a Host that was shut down to save energy; empty if it was not.
type SleepState string

// States of sleeping Hosts.
const (
	// ShuttingDown: the shutdown was requested, or is about to be.
	ShuttingDown SleepState = "ShuttingDown"
	Asleep       SleepState = "Asleep"
	// Waking: the Host was woken and is not up yet.
	Waking SleepState = "Waking"
	// WakeFailed: the Host was not up in time.
	WakeFailed SleepState = "WakeFailed"
)

// Sleep is the record about a Host that was shut down to save energy. It exists before the
// shutdown is requested and until the Host is up again.
type Sleep struct {
	State SleepState `json:"state"`
	// KubeCluster is the UID of the Kubernetes cluster whose controller shut the Host down.
	KubeCluster string `json:"kubeCluster"`
	// Since is when the shutdown was requested.
	Since time.Time `json:"since"`
	// WakeSince is when the Host was first woken, WakeSent when it was last. WakeReason is why.
	WakeSince  time.Time `json:"wakeSince,omitzero"`
	WakeSent   time.Time `json:"wakeSent,omitzero"`
	WakeReason string    `json:"wakeReason,omitempty"`
	// FailedAt is when WakeFailed was set.
	FailedAt time.Time `json:"failedAt,omitzero"`
	// Address of the Host, which Proxmox reports only while it is on.
	Address string             `json:"address,omitempty"`
	Known   observed.KnownHost `json:"known"`
}

// SleepState returns the state of a Host. One that is off although its record does not show it
// yet is asleep.
func (s Sleep) SleepState(online bool) SleepState {
	if s.State == ShuttingDown && !online {
		return Asleep
	}
	return s.State
}

// IsAvailable reports whether a Host in this state accepts VMs: it is woken for them.
func (s SleepState) IsAvailable() bool { return s == ShuttingDown || s == Asleep || s == Waking }
