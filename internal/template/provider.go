// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Deps is what the making of Templates needs around it.
type Deps struct {
	// Clients by region.
	Clients   map[string]proxmox.Client
	Inventory *inventory.Inventory
	Clock     clock.WithTicker
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string
	Settings    Settings
}

// Settings are the limits that an operator may change.
type Settings struct {
	// VMIDs is the range that Templates' ids come from, the lowest free one first.
	VMIDs placement.Range
	// Builds bounds how many Hosts are worked on at once.
	Builds int
	// TaskTimeout is how long one task is watched without a break.
	TaskTimeout time.Duration
	// Grace is how long a Template must have been unneeded before it is removed.
	Grace time.Duration
}

// Provider makes, changes and removes Templates.
type Provider struct {
	Deps
	memory    *memory
	images    *turns
	vmids     *vmids
	durations *proxmox.Durations
}

// NewProvider makes the Provider.
func NewProvider(deps Deps) *Provider {
	return &Provider{
		Deps: deps, memory: newMemory(), images: newTurns(), vmids: newVMIDs(deps.Settings.VMIDs, deps.Clock), durations: proxmox.NewDurations(),
	}
}

// Ours lists the finished Templates of a ProxmoxTemplate, as the view shows them.
func (p *Provider) ListOwned(uid string) []Existing {
	return ListOwned(p.Inventory.View(), p.KubeCluster, uid)
}

func (p *Provider) client(region string) (proxmox.Client, error) {
	c, ok := p.Clients[region]
	if !ok {
		return nil, fmt.Errorf("region %q is not in the cloud config", region)
	}
	return c, nil
}

// errStillRunning says that a task takes longer than it is watched at a time: the
// next run takes it up again.
var errStillRunning = errors.New("still under way")

// wait for a task's end; the error is the task's own.
func (p *Provider) wait(ctx context.Context, c proxmox.Client, task proxmox.UPID, key string) error {
	watch, cancel := context.WithTimeout(ctx, p.Settings.TaskTimeout)
	defer cancel()
	status, err := proxmox.WaitTask(watch, c, task, proxmox.WaitOptions{Durations: p.durations, Key: key, Clock: p.Clock})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return errStillRunning
	case err != nil:
		return err
	}
	return status.Err()
}

// pause as long as the clock says.
func (p *Provider) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-p.Clock.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
