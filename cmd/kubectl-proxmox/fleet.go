// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
)

// fleetSource reads the map of hosts and VMs from Proxmox and Kubernetes.
type fleetSource struct {
	kube        client.Client
	view        *view
	kubeCluster string
	maintenance *maintenance.ConfigMap
	clock       clock.PassiveClock
}

// newFleetSource returns a source. It reads the identity of the Kubernetes cluster.
func newFleetSource(ctx context.Context, kube client.Client, v *view) (*fleetSource, error) {
	system := &corev1.Namespace{}
	if err := kube.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, system); err != nil {
		return nil, fmt.Errorf("reading the UID of namespace %s, which identifies the VMs of this cluster: %w", metav1.NamespaceSystem, err)
	}
	return &fleetSource{
		kube: kube, view: v, kubeCluster: string(system.UID), clock: clock.RealClock{},
		maintenance: &maintenance.ConfigMap{Namespace: v.settings.Options.SystemNamespace, Inventory: v.inventory, Recorder: noEvents{}},
	}, nil
}

// noEvents drops events: only the controller emits them.
type noEvents struct{}

func (noEvents) Publish(...events.Event) {}

// read returns the current map. A Proxmox cluster that does not respond is shown as of its
// last poll. It fails if none was ever read.
func (s *fleetSource) read(ctx context.Context) (fleet.Map, error) {
	if err := s.view.inventory.RefreshAll(ctx); err != nil && len(s.view.inventory.View().Snapshots) == 0 {
		return fleet.Map{}, err
	}
	if err := s.maintenance.Read(ctx, s.kube); client.IgnoreNotFound(err) != nil {
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
