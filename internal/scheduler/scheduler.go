// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scheduler runs Karpenter's scheduler outside of its own controllers: for the plan of the
// kubectl plugin, and to find out whether pods of a Node fit elsewhere.
package scheduler

import (
	"context"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"
)

// Deps are what the scheduler decides with.
type Deps struct {
	Kube     client.Client
	Recorder events.Recorder
	Cluster  *state.Cluster
	Clock    clock.Clock
}

// Scheduler is Karpenter's scheduler with the offerings of one cloud provider.
type Scheduler struct {
	*provisioning.Provisioner

	deps Deps
}

// New returns a Scheduler.
func New(deps Deps, offerings cloudprovider.CloudProvider) Scheduler {
	return Scheduler{deps: deps, Provisioner: provisioning.NewProvisioner(deps.Kube, deps.Recorder, offerings, deps.Cluster, deps.Clock,
		deviceallocation.NewController(deps.Kube), virtualpods.NewVirtualPodCache(deps.Kube))}
}

// Without schedules the pods of Nodes as if these were deleted.
func (s Scheduler) Without(ctx context.Context, nodes ...*disruption.Candidate) (scheduling.Results, error) {
	return disruption.SimulateScheduling(ctx, s.deps.Kube, s.deps.Cluster, s.Provisioner, s.deps.Clock, s.deps.Recorder, nil, disruption.SimulationOptions{}, nodes...)
}
