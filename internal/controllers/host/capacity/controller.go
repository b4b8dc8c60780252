// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package capacity wakes consolidation when Hosts have more room: core looks at Nodes
// again when something changed in Kubernetes, and a guest that somebody removed
// from a Host is no such change.
package capacity

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Cluster is core's state of the Kubernetes cluster.
type Cluster interface {
	// MarkUnconsolidated makes consolidation look at all Nodes again.
	MarkUnconsolidated() time.Time
}

// Controller watches the room on Hosts.
type Controller struct {
	inventory *inventory.Inventory
	cluster   Cluster
}

// NewController makes the Controller.
func NewController(inv *inventory.Inventory, cluster Cluster) *Controller {
	return &Controller{inventory: inv, cluster: cluster}
}

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	if err := m.Add(manager.RunnableFunc(c.Start)); err != nil {
		return fmt.Errorf("adding the watch on freed capacity, %w", err)
	}
	return nil
}

// Start watches until the context ends.
func (c *Controller) Start(ctx context.Context) error {
	changes := c.inventory.Subscribe(ctx)
	before := room(c.inventory.View())
	for range changes {
		now := room(c.inventory.View())
		if grown(before, now) {
			c.cluster.MarkUnconsolidated()
		}
		before = now
	}
	return nil
}

// hostRoom is what a Host gives to a new VM.
type hostRoom struct {
	free    inventory.Amount
	devices int
}

func room(view inventory.View) map[[2]string]hostRoom {
	rooms := map[[2]string]hostRoom{}
	for _, host := range view.Hosts() {
		if host.Unusable != "" {
			continue
		}
		here := hostRoom{free: host.Free}
		for _, n := range host.FreeDevices {
			here.devices += n
		}
		rooms[[2]string{host.Region, host.Name}] = here
	}
	return rooms
}

// grown tells whether any Host has more room than before.
func grown(before, now map[[2]string]hostRoom) bool {
	for host, here := range now {
		was, known := before[host]
		if !known || here.free.CPUs > was.free.CPUs || here.free.MemoryBytes > was.free.MemoryBytes || here.devices > was.devices {
			return true
		}
	}
	return false
}
