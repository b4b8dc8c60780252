// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operations wires the operations on VMs over the state that they share.
package operations

import (
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Deps are the dependencies of the operations.
type Deps struct {
	Clients   instance.Clients
	Roots     instance.Roots
	Inventory *inventory.Inventory
	Types     *instancetype.Provider
	Kube      client.Client
	Boot      boot.Source
	Clock     clock.WithTicker
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string
	Settings    instance.Settings
	Metrics     instance.Metrics
}

// Operations are the operations on VMs. Users take the one that they need.
type Operations struct {
	VMs        *instance.Provider
	Planner    *plan.Planner
	Launcher   *launch.Launcher
	Health     *launch.Health
	CloneTimes *launch.CloneTimes
	Deleter    *deletion.Deleter
	Power      *instance.Power
	Updater    *instance.Updater
	Adopter    *instance.Adopter
}

// New returns the operations with a new state of Claims.
func New(deps Deps) *Operations {
	shared := instance.Deps{
		Clients: deps.Clients, Roots: deps.Roots, Inventory: deps.Inventory, Kube: deps.Kube,
		Clock: deps.Clock, KubeCluster: deps.KubeCluster, Settings: deps.Settings,
		Guard: instance.NewGuard(), Launches: instance.NewLaunchTracker(), Tasks: instance.NewTasks(deps.Settings, deps.Clock),
	}
	o := &Operations{
		VMs:        instance.NewProvider(shared),
		Planner:    plan.New(shared, deps.Types, deps.Boot.Reader, deps.Metrics),
		Health:     launch.NewHealth(),
		CloneTimes: launch.NewCloneTimes(shared),
		Deleter:    deletion.New(shared, deps.Boot.Tokens),
		Adopter:    instance.NewAdopter(shared),
	}
	o.Launcher = launch.New(shared, o.Planner, deps.Types, deps.Boot, launch.Stats{Health: o.Health, Metrics: deps.Metrics})
	o.Power, o.Updater = instance.NewPower(shared, o.VMs), instance.NewUpdater(shared, o.VMs)
	return o
}
