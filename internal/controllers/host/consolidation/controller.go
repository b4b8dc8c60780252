// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package consolidation triggers consolidation when Hosts have more free capacity. Core
// only evaluates Nodes again after a change in Kubernetes, and a deleted guest on a Host
// is no such change.
package consolidation

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Cluster is core's state of the Kubernetes cluster.
type Cluster interface {
	// MarkUnconsolidated makes consolidation evaluate all Nodes again.
	MarkUnconsolidated() time.Time
}

// Controller watches the free capacity of Hosts.
type Controller struct {
	inventory *inventory.Inventory
	cluster   Cluster
}

// NewController returns a Controller.
func NewController(inv *inventory.Inventory, cluster Cluster) *Controller {
	return &Controller{inventory: inv, cluster: cluster}
}

// Register registers the Controller with a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	if err := m.Add(manager.RunnableFunc(c.Start)); err != nil {
		return fmt.Errorf("adding the capacity watch: %w", err)
	}
	return nil
}

// Start watches the inventory until the context is canceled.
func (c *Controller) Start(ctx context.Context) error {
	changes := c.inventory.Subscribe(ctx)
	before := freeCapacity(c.inventory.View())
	for range changes {
		now := freeCapacity(c.inventory.View())
		if hasGrown(before, now) {
			c.cluster.MarkUnconsolidated()
		}
		before = now
	}
	return nil
}

// hostCapacity is the free capacity of a Host.
type hostCapacity struct {
	free    observed.Amount
	devices int
}

func freeCapacity(view inventory.View) map[[2]string]hostCapacity {
	capacities := map[[2]string]hostCapacity{}
	for _, host := range view.Hosts() {
		if !host.IsAvailable(inventory.Launch) {
			continue
		}
		capacity := hostCapacity{free: host.Free}
		for _, n := range host.FreeDevices {
			capacity.devices += n
		}
		capacities[[2]string{host.Region, host.Name}] = capacity
	}
	return capacities
}

// hasGrown reports whether any Host has more free capacity than before.
func hasGrown(before, now map[[2]string]hostCapacity) bool {
	for host, here := range now {
		was, known := before[host]
		if !known || here.free.CPUs > was.free.CPUs || here.free.MemoryBytes > was.free.MemoryBytes || here.devices > was.devices {
			return true
		}
	}
	return false
}
