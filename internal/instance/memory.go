// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"sync"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// memory is what this process knows of launches beyond what the Claims say. It
// only saves calls: whoever has lost it looks at Proxmox instead.
type memory struct {
	mu      sync.Mutex
	byClaim map[string]*recollection
}

type recollection struct {
	// planned: the launch began in this process.
	planned bool
	// tried: Proxmox was asked for the clone.
	tried bool
	// open: a clone that was asked for may still be at work.
	open      bool
	taskKnown bool
	task      proxmox.UPID
	// done: this process saw the launch through, whatever the cached Claim says.
	done bool
	// trouble is when the launch met its first obstacle.
	trouble time.Time
	// shutdownTask is a guest's shutdown under way.
	shutdownTask proxmox.UPID
}

func newMemory() *memory { return &memory{byClaim: map[string]*recollection{}} }

func (m *memory) at(uid string) *recollection {
	r, ok := m.byClaim[uid]
	if !ok {
		r = &recollection{}
		m.byClaim[uid] = r
	}
	return r
}

func (m *memory) planned(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at(uid).planned = true
}

// completed notes that the launch is over.
func (m *memory) completed(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byClaim[uid] = &recollection{done: true}
}

func (m *memory) isCompleted(uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.byClaim[uid]
	return ok && r.done
}

// asking notes that a clone is about to be asked for.
func (m *memory) asking(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.at(uid)
	r.tried, r.open = true, true
}

// settled notes that the clone that was asked for has ended, or never began.
func (m *memory) settled(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.at(uid)
	r.open, r.taskKnown, r.task = false, true, ""
}

// noneOpen tells for certain that no clone of the Claim is at work.
func (m *memory) noneOpen(uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.byClaim[uid]
	return ok && r.planned && !r.open
}

func (m *memory) fresh(uid string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.byClaim[uid]
	return ok && r.planned && !r.tried
}

// task is the clone task of a Claim: as remembered, else as annotated. The
// cached Claim lags behind what we patched onto it.
func (m *memory) task(claim *karpv1.NodeClaim) proxmox.UPID {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.byClaim[string(claim.UID)]; ok && r.taskKnown {
		return r.task
	}
	return proxmox.UPID(claim.Annotations[v1alpha1.AnnotationLaunchTask])
}

func (m *memory) setTask(claim *karpv1.NodeClaim, task proxmox.UPID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.at(string(claim.UID))
	r.task, r.taskKnown = task, true
}

// troubled notes that a launch met an obstacle, and answers since when it does: a
// launch that waited for its turn has not lost its patience.
func (m *memory) troubled(uid string, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.at(uid)
	if r.trouble.IsZero() {
		r.trouble = now
	}
	return r.trouble
}

// overcome notes that a launch has come further: its patience begins anew with the
// next obstacle.
func (m *memory) overcome(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.byClaim[uid]; ok {
		r.trouble = time.Time{}
	}
}

// shutdown is the guest's shutdown that an earlier Delete began.
func (m *memory) shutdown(uid string) (proxmox.UPID, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.byClaim[uid]
	if !ok || r.shutdownTask == "" {
		return "", false
	}
	return r.shutdownTask, true
}

func (m *memory) setShutdown(uid string, task proxmox.UPID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.byClaim[uid]; !ok && task == "" {
		return
	}
	m.at(uid).shutdownTask = task
}

func (m *memory) forget(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byClaim, uid)
}
