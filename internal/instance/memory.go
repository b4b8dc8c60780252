// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"sync"

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
	planned, tried bool
	taskKnown      bool
	task           proxmox.UPID
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

func (m *memory) tried(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at(uid).tried = true
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

func (m *memory) forget(uid string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byClaim, uid)
}
