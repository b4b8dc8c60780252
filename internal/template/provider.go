// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/keyed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// Deps are the dependencies of a Provider.
type Deps struct {
	// Clients by region.
	Clients   map[string]proxmox.Client
	Inventory *inventory.Inventory
	Clock     clock.WithTicker
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string
	Recorder    events.Recorder
	Settings    Settings
	// RenderBootData renders the boot data of builder VMs.
	RenderBootData RenderBootData
}

// Settings are the limits that an operator can configure.
type Settings struct {
	// VMIDs is the range that the VMIDs of Templates are allocated from, lowest first.
	VMIDs placement.Range
	// Builds is how many Hosts are reconciled concurrently.
	Builds int
	// TaskTimeout is how long a run waits for one task. The next run resumes the wait.
	TaskTimeout time.Duration
	// GracePeriod is how long a Template must have been unneeded before it is deleted.
	GracePeriod time.Duration
	// HostRemovedAfter is the delay after which the Templates of a Host that left its Cluster
	// do not block the deletion of their ProxmoxTemplate.
	HostRemovedAfter time.Duration
	// BuilderMinRuntime is how long a builder VM must run. One that powers off earlier has
	// not installed anything.
	BuilderMinRuntime time.Duration
}

// parallelDestroys is how many Templates are destroyed in parallel on a storage.
const parallelDestroys = 4

// Provider creates, updates and deletes Templates.
type Provider struct {
	clients     map[string]proxmox.Client
	inventory   *inventory.Inventory
	clock       clock.WithTicker
	kubeCluster string
	recorder    events.Recorder
	settings    Settings

	renderBootData RenderBootData

	tracker *tracker
	tasks   *vm.Tasks
	sweeps  *due.Cache[observed.HostName, time.Duration]
	// guests hold until when the guest of a builder VM is not read again.
	guests *backoff.Holds[HostKey]
	images *keyed.Semaphore[string]
}

// NewProvider returns a Provider without any recorded state.
func NewProvider(deps Deps) *Provider {
	return &Provider{
		clients: deps.Clients, inventory: deps.Inventory, clock: deps.Clock, kubeCluster: deps.KubeCluster, recorder: deps.Recorder, settings: deps.Settings,
		renderBootData: deps.RenderBootData, tasks: vm.NewTasks(deps.Inventory, deps.Settings.TaskTimeout, parallelDestroys, deps.Clock),
		tracker: newTracker(deps.Clock), sweeps: newSweeps(deps.Clock), guests: backoff.NewHolds[HostKey](deps.Clock, failureBackoff), images: keyed.NewSemaphore[string](1),
	}
}

// Inventory returns the inventory that the Provider reads.
func (p *Provider) Inventory() *inventory.Inventory { return p.inventory }

// KubeCluster returns the UID of the namespace kube-system.
func (p *Provider) KubeCluster() string { return p.kubeCluster }

// MaxConcurrentBuilds returns how many Hosts may be reconciled concurrently.
func (p *Provider) MaxConcurrentBuilds() int { return p.settings.Builds }

func (p *Provider) client(region string) (proxmox.Client, error) {
	c, ok := p.clients[region]
	if !ok {
		return nil, fmt.Errorf("region %q is not in the cloud config", region)
	}
	return c, nil
}

// errStillRunning reports that a task did not end within the task timeout. The next run
// resumes the wait.
var errStillRunning = errors.New("still running")

// errImageBusy reports that another run downloads the image.
var errImageBusy = fmt.Errorf("downloading the image: %w", errStillRunning)

// wait waits until a task ends and returns the task's error.
func (p *Provider) wait(ctx context.Context, c proxmox.Client, task proxmox.UPID) error {
	_, err := p.tasks.Wait(ctx, c, task)
	return waitError(ctx, err)
}

// waitError returns errStillRunning for the error of a wait that ended after the task timeout, and the cause
// if the context ended.
func waitError(ctx context.Context, err error) error {
	switch {
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return errStillRunning
	}
	return err
}

// Clock returns the clock of the Provider.
func (p *Provider) Clock() clock.PassiveClock { return p.clock }

// sleep waits for d on the Provider's clock. It fails when the context ends.
func (p *Provider) sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-p.clock.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
