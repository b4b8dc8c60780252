// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// fleetSource reads the map of hosts and VMs from Proxmox and Kubernetes.
type fleetSource struct {
	kube        client.Client
	view        *view
	kubeCluster string
	clock       clock.PassiveClock
}

// newFleetSource returns a source. It reads the identity of the Kubernetes cluster.
func newFleetSource(ctx context.Context, kube client.Client, v *view) (*fleetSource, error) {
	id, err := clusterID(ctx, kube)
	if err != nil {
		return nil, err
	}
	return &fleetSource{kube: kube, view: v, kubeCluster: id, clock: clock.RealClock{}}, nil
}

// readHostStates applies the ConfigMaps of hosts in maintenance and of hosts that were shut down
// to save energy to a view that was read. It refreshes the clusters that the view has polled.
func (v *view) readHostStates(ctx context.Context, kube client.Client) error {
	sleeping, err := v.applyHostStates(ctx, kube)
	if err != nil || !sleeping {
		return err
	}
	for region := range v.inventory.View().Snapshots { // the records have the sizes of sleeping hosts
		if err := v.inventory.Refresh(ctx, region); err != nil {
			return err
		}
	}
	return nil
}

// noEvents is a recorder of a command, which emits no events.
type noEvents struct{}

// Publish does nothing.
func (noEvents) Publish(...events.Event) {}

// applyHostStates applies the ConfigMaps to the next refresh, and returns whether a host was shut
// down to save energy. It emits no events about invalid entries: the controller does.
func (v *view) applyHostStates(ctx context.Context, kube client.Client) (sleeping bool, err error) {
	hosts := &maintenance.ConfigMap{Namespace: v.settings.Options.SystemNamespace, Inventory: v.inventory, Recorder: noEvents{}}
	if err := hosts.Read(ctx, kube); err != nil {
		return false, err
	}
	id, err := clusterID(ctx, kube)
	if err != nil {
		return false, err
	}
	records, err := power.Store{Kube: kube, Namespace: v.settings.Options.SystemNamespace, KubeCluster: id}.Load(ctx)
	if err != nil {
		return false, err
	}
	v.inventory.SetSleeping(records)
	return len(records) > 0, nil
}

// read returns the current map. A Proxmox cluster that does not respond is shown as of its
// last poll. It fails if none was ever read.
func (s *fleetSource) read(ctx context.Context) (fleet.Map, error) {
	if _, err := s.view.applyHostStates(ctx, s.kube); err != nil {
		return fleet.Map{}, err
	}
	if err := s.view.inventory.RefreshAll(ctx); err != nil && len(s.view.inventory.View().Snapshots) == 0 {
		return fleet.Map{}, err
	}
	objects, err := fleet.ReadObjects(ctx, s.kube, s.kube)
	if err != nil {
		return fleet.Map{}, err
	}
	return fleet.Build(fleet.Input{
		View: s.view.inventory.View(), Objects: objects, KubeCluster: s.kubeCluster, Pricing: s.view.settings.Options.Pricing(), Now: s.clock.Now(),
	}), nil
}
