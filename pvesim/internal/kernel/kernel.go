// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kernel is the core of the simulated cluster: hosts, guests, cluster options, quorum, clock, tasks, locks and
// access control, and the dispatch of API calls to the handlers that the other packages register.
//
// Kernel.Mu guards the state of all packages. A handler holds it only while it reads or changes state; everything that
// takes time (locks, copies, boots) runs in tasks and waits without it.
package kernel

import (
	"context"
	"fmt"
	"sync"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/access"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/schema"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// Kernel is the state that all areas of the API share. It dispatches API calls to their handlers.
type Kernel struct {
	Permissions

	Clock   *clock.Clock
	Signer  *access.Signer
	Tasks   *tasks.Registry
	Locks   *locks.Table
	Schema  *schema.Catalog
	Version Version
	Name    string // of the cluster, empty for a standalone host

	// Mu guards the fields below and the state of the packages that register handlers.
	Mu       sync.Mutex
	Hosts    []*Host
	Guests   map[int]*Guest
	Options  map[string]string // datacenter.cfg
	NoQuorum bool

	hostsByName map[string]*Host
	nextPID     int

	ctx    context.Context
	cancel context.CancelFunc
	group  *clock.Group
	routes map[string]api.Handler
}

// New returns a cluster without hosts and handlers. It fails if there is no schema for the version.
func New(version Version, name string, speed float64) (*Kernel, error) {
	catalog, err := schema.Load(version.Release)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	c, group := clock.New(speed), clock.NewGroup()
	return &Kernel{
		Permissions: Permissions{Access: access.New(schema.Privileges(version.Release))}, Clock: c, Signer: access.NewSigner(),
		Tasks: tasks.NewRegistry(ctx, c, group), Locks: locks.New(c), Schema: catalog, Version: version, Name: name,
		Guests: map[int]*Guest{}, Options: map[string]string{}, hostsByName: map[string]*Host{}, nextPID: 15000,
		ctx: ctx, cancel: cancel, group: group, routes: map[string]api.Handler{},
	}, nil
}

// Handle registers handlers by method, "GET /version". It fails if the schema does not have a method, unless the
// version is known not to have it. It must not be called after the first request.
func (k *Kernel) Handle(routes map[string]api.Handler) error {
	for name, handler := range routes {
		if k.Schema.Method(name) == nil && !k.Version.isMissing(name) {
			return fmt.Errorf("building the method table: %s is not in the schema of %s", name, k.Version.Release)
		}
		k.routes[name] = handler
	}
	return nil
}

// Go runs f in a goroutine that Close waits for.
func (k *Kernel) Go(f func()) { k.group.Go(f) }

// Context returns the context that Close cancels.
func (k *Kernel) Context() context.Context { return k.ctx }

// Close stops all guests and tasks and waits for them.
func (k *Kernel) Close() {
	k.cancel()
	k.group.Wait()
}
