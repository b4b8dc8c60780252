// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package operations wires the operations on VMs over the state that they share.
package operations

import (
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// Operations are the operations on VMs. Users take the one that they need.
type Operations struct {
	Overlays *nodeoverlay.InstanceTypeStore
	VMs      *instance.Provider
	Planner  *plan.Planner
	Launcher *launch.Launcher
	Health   *launch.Health
	Deleter  *deletion.Deleter
	Power    *instance.Power
	Updater  *instance.Updater
	Adopter  *instance.Adopter
	Launches *instance.LaunchTracker
}

// New returns the operations. It adds a new state of Claims to the dependencies.
func New(deps instance.Deps, types *instancetype.Provider, source boot.Source, metrics instance.Metrics) *Operations {
	deps.Guard, deps.Launches = instance.NewGuard(), instance.NewLaunchTracker()
	deps.Tasks = vm.NewTasks(deps.Inventory, deps.Settings.TaskTimeout, deps.Settings.CloneSlots, deps.Clock)
	deps.HA = instance.NewHA(deps)
	if deps.Overlays == nil {
		deps.Overlays = nodeoverlay.NewInstanceTypeStore()
	}
	o := &Operations{
		Overlays: deps.Overlays,
		VMs:      instance.NewProvider(deps),
		Planner:  plan.New(deps, types, source.Reader, metrics),
		Health:   launch.NewHealth(deps),
		Deleter:  deletion.New(deps, source.Tokens),
		Adopter:  instance.NewAdopter(deps),
		Launches: deps.Launches,
	}
	types.LimitCloneQueue(placement.CloneQueue{Slots: deps.Settings.CloneSlots, Limit: deps.Settings.CloneRefuseAfter, Duration: o.Health.CloneTime})
	o.Launcher = launch.New(deps, o.Planner, types, source, launch.Stats{Health: o.Health, Metrics: metrics})
	o.Power, o.Updater = instance.NewPower(deps, o.VMs), instance.NewUpdater(deps, o.VMs)
	return o
}
