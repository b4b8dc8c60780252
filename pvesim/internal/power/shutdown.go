// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// stopAllTimeout is how long a guest may take to shut down with its host.
const stopAllTimeout = 180 * time.Second

// ShutdownHost shuts a host down. Its guests are stopped by a stopall task, during which it is online; then it is off,
// and connections to it fail with "no route". It does not block.
func (c *Controller) ShutdownHost(name string) error {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	if c.k.Host(name) == nil {
		return api.Failf("there is no host '%s'", name)
	}
	task := c.stopGuests(name)
	c.k.Go(func() {
		<-task.Done()
		if task.State().Exit == "OK" {
			_ = c.HostDown(name, "noroute") // it exists
		}
	})
	return nil
}

// stopGuests starts the task that stops all guests of a host. The caller holds the mutex.
func (c *Controller) stopGuests(host string) *tasks.Task {
	root := api.Request{Who: access.Identity{User: access.Root}, Host: host}
	return c.k.Fork(&root, "stopall", "", func(context.Context, *tasks.Task) error {
		for _, stop := range c.stopAll(root) {
			<-stop.Done()
		}
		return nil
	})
}

// stopAll starts the shutdown of all guests of a host.
func (c *Controller) stopAll(root api.Request) []*tasks.Task {
	c.k.Mu.Lock()
	defer c.k.Mu.Unlock()
	var out []*tasks.Task
	for _, g := range c.k.SortedGuests() {
		if g.Host != root.Host || !g.IsRunning() {
			continue
		}
		r := root
		r.VMID = g.VMID
		out = append(out, c.k.ForkVM(&r, "qmshutdown", func(ctx context.Context, t *tasks.Task) error {
			return c.Shutdown(ctx, t, &r, stopAllTimeout)
		}))
	}
	return out
}
