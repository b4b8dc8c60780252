// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// CheckPreparation checks the boot data of a ProxmoxTemplate's builder VMs and returns the
// hash of the content of its Secrets.
type CheckPreparation func(ctx context.Context, t *v1alpha1.ProxmoxTemplate) (string, error)

// bootDataInterval is how often Secrets are read: the status is written more often.
const bootDataInterval = 30 * time.Second

// preparations caches the last checks of boot data.
type preparations struct {
	check CheckPreparation
	mu    sync.Mutex
	last  map[types.UID]bootDataCheck
}

type bootDataCheck struct {
	generation int64
	at         time.Time
	hash       string
	err        error
}

func newPreparations(check CheckPreparation) *preparations {
	return &preparations{check: check, last: map[types.UID]bootDataCheck{}}
}

// hash returns the hash of the boot data, as of the last bootDataInterval.
func (p *preparations) hash(ctx context.Context, t *v1alpha1.ProxmoxTemplate, now time.Time) (string, error) {
	p.mu.Lock()
	last, ok := p.last[t.UID]
	p.mu.Unlock()
	if ok && last.generation == t.Generation && now.Sub(last.at) < bootDataInterval && last.err == nil {
		return last.hash, nil
	}
	hash, err := p.check(ctx, t)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last[t.UID] = bootDataCheck{generation: t.Generation, at: now, hash: hash, err: err}
	return hash, err
}

func (p *preparations) evict(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, uid)
}

// reconcilePreparation sets the status of the preparation: the hash of the boot data, and
// the time of the last refresh, a new one if the Templates are due. It returns why the boot
// data cannot be used, and after which time to check again.
func (c *Controller) reconcilePreparation(ctx context.Context, t *v1alpha1.ProxmoxTemplate, classes []v1alpha1.ProxmoxNodeClass) (problem string, after time.Duration) {
	if t.Spec.Prepare == nil || !t.DeletionTimestamp.IsZero() {
		c.preparations.evict(t.UID)
		if t.Spec.Prepare == nil {
			t.Status.Preparation = nil
		}
		return "", 0
	}
	now := c.templates.Now()
	if t.Status.Preparation == nil {
		t.Status.Preparation = &v1alpha1.PreparationStatus{}
	}
	after = bootDataInterval
	hash, err := c.preparations.hash(ctx, t, now)
	if err != nil {
		problem = err.Error()
	} else {
		t.Status.Preparation.BootDataHash = hash
	}
	due, left := c.templates.RefreshDue(template.NewDesired(t, classes))
	if due {
		t.Status.Preparation.RefreshedAt = new(metav1.NewTime(now.UTC().Truncate(time.Second)))
	} else if left > 0 {
		after = min(after, left)
	}
	return problem, after
}
