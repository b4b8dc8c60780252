// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Deps is what the life of a VM needs around it.
type Deps struct {
	// Clients by region.
	Clients map[string]proxmox.Client
	// Roots by region do what no token may; most regions have none.
	Roots     map[string]proxmox.Root
	Inventory *inventory.Inventory
	Types     *instancetype.Provider
	Kube      client.Client
	// Boot reads what boot data is made of: secrets, the cluster's CA, tokens.
	Boot  BootSource
	Clock clock.WithTicker
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string
	Settings    Settings
	Metrics     Metrics
}

// Settings are the limits that an operator may change.
type Settings struct {
	// VMIDs is the range that our VMs' ids come from.
	VMIDs placement.Range
	// CloneSlots bounds clones and destroys at once per storage: on one Host, or
	// in the whole Cluster where the storage is shared.
	CloneSlots int
	// TaskTimeout bounds the wait for one Proxmox task.
	TaskTimeout time.Duration
	// LaunchRetryTimeout is how long a launch is tried against passing troubles.
	LaunchRetryTimeout time.Duration
	// StaticCapacityTimeout is how long a claim of a static pool waits for room before it
	// is given up and made anew.
	StaticCapacityTimeout time.Duration
	// OperationTimeout bounds how long one attempt to remove or to restart a VM
	// waits for Proxmox, which goes on without us: the next attempt finds its work.
	OperationTimeout time.Duration
	// ShutdownTimeout is how long a guest may take to shut down before its power
	// is cut; 0 cuts it at once.
	ShutdownTimeout time.Duration
	// HostRemovedAfter is how long a Host that has left its Cluster is waited for
	// before its VMs count as gone with it.
	HostRemovedAfter time.Duration
	// SlowClone is worth a warning, TooSlowClone a refusal.
	SlowClone, TooSlowClone time.Duration
}

// Provider launches, finds and removes VMs.
type Provider struct {
	Deps
	guard     *guard
	slots     *slots
	memory    *memory
	health    *health
	durations *proxmox.Durations
	recall    recall
	lookedAt  looks
}

// NewProvider makes the Provider.
func NewProvider(deps Deps) *Provider {
	return &Provider{
		Deps:      deps,
		guard:     newGuard(),
		slots:     newSlots(deps.Settings.CloneSlots),
		memory:    newMemory(),
		health:    newHealth(),
		durations: proxmox.NewDurations(),
	}
}

// client of a region. A region that left the cloud config is no proof that its
// VMs are gone.
func (p *Provider) client(region string) (proxmox.Client, error) {
	c, ok := p.Clients[region]
	if !ok {
		return nil, fmt.Errorf("region %q is not in the cloud config: add it again, or remove what is left there by hand", region)
	}
	return c, nil
}

func (p *Provider) identity(in Intent, claim *karpv1.NodeClaim) Identity {
	return p.identityOf(v1alpha1.ProviderID{Region: in.Region, VMID: in.VMID}, claim)
}

// wait for a task's end; the error is the task's own.
func (p *Provider) wait(ctx context.Context, c proxmox.Client, task proxmox.UPID, key string) (proxmox.TaskStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, p.Settings.TaskTimeout)
	defer cancel()
	status, err := proxmox.WaitTask(ctx, c, task, proxmox.WaitOptions{Durations: p.durations, Key: key, Clock: p.Clock})
	if err != nil {
		return status, err
	}
	return status, status.Err()
}

func (l *launch) wait(ctx context.Context, task proxmox.UPID) error {
	_, err := l.Provider.wait(ctx, l.client, task, durationKey(l.intent.Region, l.intent.Host, l.intent.Storage))
	return err
}

func (l *launch) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-l.Clock.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// annotate patches our keys onto the Claim; core's own patches leave them alone.
func (l *launch) annotate(ctx context.Context, values map[string]string) error {
	return annotate(ctx, l.Kube, l.claim, values)
}

// annotate sends our keys and nothing else, however old our view of the Claim is.
// The UID refuses a Claim of the same name that was made since.
func annotate(ctx context.Context, kube client.Client, claim *karpv1.NodeClaim, values map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID, "annotations": values}})
	if err != nil {
		return fmt.Errorf("annotating nodeclaim %s, %w", claim.Name, err)
	}
	target := &karpv1.NodeClaim{}
	target.Name = claim.Name
	if err := kube.Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("annotating nodeclaim %s, %w", claim.Name, err)
	}
	return nil
}

func nodePoolOf(claim *karpv1.NodeClaim) string { return claim.Labels[karpv1.NodePoolLabelKey] }
