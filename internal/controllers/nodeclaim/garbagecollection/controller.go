// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package garbagecollection removes VMs of ours whose Claim is gone: a controller
// that died at the wrong moment, or a Claim that was torn out by force, must not
// leave a VM running for ever.
package garbagecollection

import (
	"context"
	"fmt"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

const (
	// grace lets a Claim that this process has not seen yet show up.
	grace = 30 * time.Second
	// brakeShare and brakeFloor stop the collector when too many VMs look
	// orphaned at once: after an etcd restore, or with the wrong kubeconfig, live
	// nodes look like orphans.
	brakeShare = 2 // one in two
	brakeFloor = 3
)

// Controller collects orphans.
type Controller struct {
	// reader reads Claims past the cache: a Claim that the cache has not seen yet
	// would make its VM an orphan.
	reader    client.Reader
	instances *instance.Provider
	clock     clock.Clock
	interval  time.Duration
	suspected map[string]time.Time
}

// NewController makes the Controller.
func NewController(reader client.Reader, instances *instance.Provider, interval time.Duration) *Controller {
	return &Controller{reader: reader, instances: instances, clock: instances.Clock, interval: interval, suspected: map[string]time.Time{}}
}

// Name of the controller in logs and metrics.
func (c *Controller) Name() string { return "nodeclaim.garbagecollection.proxmox" }

// Register the Controller.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named(c.Name()).
		WatchesRawSource(singleton.Source()).
		Complete(singleton.AsReconciler(c))
}

// Reconcile looks for orphans once. Proxmox is listed before Kubernetes: the
// other way round a Claim made in between would lose its VM.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	again := reconciler.Result{RequeueAfter: c.interval}
	vms, err := c.instances.List()
	if err != nil || len(vms) == 0 {
		// A Cluster that was never read says nothing about orphans.
		return again, nil //nolint:nilerr // the inventory reports the failure itself
	}
	claims := &karpv1.NodeClaimList{}
	if err := c.reader.List(ctx, claims); err != nil {
		return again, fmt.Errorf("listing nodeclaims, %w", err)
	}
	living := make(map[string]bool, len(claims.Items))
	for i := range claims.Items {
		living[string(claims.Items[i].UID)] = true
	}
	orphans := c.due(vms, living)
	if len(orphans) > brakeFloor && len(orphans)*brakeShare > len(vms) {
		log.FromContext(ctx).Error(nil, "too many VMs look orphaned at once, removing none: was etcd restored, or is this the wrong Kubernetes cluster?",
			"orphans", len(orphans), "vms", len(vms))
		return again, nil
	}
	for _, vm := range orphans {
		log.FromContext(ctx).Info("removing a VM whose claim is gone", "vmid", vm.VMID, "region", vm.Region, "host", vm.Host, "claim-uid", vm.ClaimUID)
		if _, err := c.instances.RemoveOrphan(ctx, vm); err != nil {
			log.FromContext(ctx).Error(err, "removing a VM whose claim is gone", "vmid", vm.VMID, "region", vm.Region, "host", vm.Host)
		}
	}
	return again, nil
}

// due are the VMs that have been without a Claim for the whole grace period.
func (c *Controller) due(vms []instance.VM, living map[string]bool) []instance.VM {
	now := c.clock.Now()
	suspected := map[string]time.Time{}
	var out []instance.VM
	for _, vm := range vms {
		if living[vm.ClaimUID] {
			continue
		}
		since, ok := c.suspected[vm.ClaimUID]
		if !ok {
			since = now
		}
		suspected[vm.ClaimUID] = since
		if now.Sub(since) >= grace {
			out = append(out, vm)
		}
	}
	c.suspected = suspected
	return out
}
