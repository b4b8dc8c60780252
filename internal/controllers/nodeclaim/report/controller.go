// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report reports what happens to Claims that no controller acts on: why a Node is drifted
// and not replaced, that its Host went offline or returned, that its region is not in the cloud
// config, and how long each step of its launch took. What was reported is kept in memory, so
// Controller reports changes. Reporter also emits the events of other controllers.
package report

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/utils/result"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Subjects of what is reported about a Claim.
const (
	subjectDrift   = "drift"
	subjectOffline = "offline"
	subjectRegion  = "region"
)

// Deps are the dependencies of the Controller.
type Deps struct {
	Kube      client.Client
	VMs       *instance.Provider
	Planner   *plan.Planner
	Launches  *instance.LaunchTracker
	Inventory *inventory.Inventory
	Recorder  events.Recorder
	Clock     clock.PassiveClock
	Metrics   instance.Metrics
	// DescribeDrift describes what differs for a reason of the cloud provider.
	DescribeDrift func(context.Context, *karpv1.NodeClaim, cloudprovider.DriftReason) string
}

// Controller reports what happens to Claims.
type Controller struct {
	deps     Deps
	reporter Reporter
}

// NewController returns a Controller.
func NewController(deps Deps) *Controller {
	return &Controller{deps: deps, reporter: Reporter{Kube: deps.Kube, Recorder: deps.Recorder}}
}

// Register registers the Controller.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	if err := indexRequests(ctx, m); err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclaim.report.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(instance.IsOurs))).
		WatchesRawSource(watch.Hosts(ctx, c.deps.Inventory, m.GetClient(), c.deps.VMs.HostOf, offlineSince)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile reports what changed about one Claim.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !instance.IsOurs(claim) || claim.Status.ProviderID == "" {
		return reconcile.Result{}, nil
	}
	region := c.reportRegion(ctx, claim)
	if !claim.DeletionTimestamp.IsZero() {
		return region, nil
	}
	c.reportHost(ctx, claim)
	launchErr := c.reportLaunch(ctx, claim)
	drift, driftErr := c.reportDrift(ctx, claim)
	if err := errors.Join(launchErr, driftErr); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: result.Min(region, drift).RequeueAfter}, nil
}

// reportRegion reports that an administrator has to act, because the region of a Claim is not in the
// cloud config.
func (c *Controller) reportRegion(ctx context.Context, claim *karpv1.NodeClaim) reconcile.Result {
	blocked := c.deps.VMs.CheckRegion(claim)
	if blocked == nil {
		return reconcile.Result{}
	}
	if before, _ := c.deps.Launches.Report(string(claim.UID), subjectRegion, blocked.Reason); before == "" {
		log.FromContext(ctx).Error(nil, "region of NodeClaim is not in the cloud config", "NodeClaim", claim.Name, "providerID", claim.Status.ProviderID)
	}
	c.deps.Recorder.Publish(event.Lasting(event.Warning(claim, blocked.Reason, blocked.Message)))
	return reconcile.Result{RequeueAfter: event.Interval}
}

const separator = " since "

// offlineSince returns which Host is offline and since when; empty if it is online.
func offlineSince(host inventory.HostState) string {
	offline, is := host.Condition(inventory.Offline)
	if !is || host.Sleep != "" {
		return ""
	}
	return host.Name + separator + offline.Since.UTC().Format(time.RFC3339)
}

// reportHost reports whether the Host of a Claim went offline or returned. While the Cluster is
// unavailable nothing is known about the Host.
func (c *Controller) reportHost(ctx context.Context, claim *karpv1.NodeClaim) {
	host, known := c.deps.VMs.HostOf(claim)
	if !known || c.deps.VMs.IsUnavailable(claim) {
		return
	}
	state := offlineSince(host)
	before, _ := c.deps.Launches.Report(string(claim.UID), subjectOffline, state)
	changed := before != state // a new leader reports what it finds: the last one may have died with the Host
	name, since, _ := strings.Cut(before, separator)
	_, now, _ := strings.Cut(state, separator)
	switch {
	case changed && state != "":
		c.reporter.Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventHostOffline, fmt.Sprintf(
			"Host %s in region %s is offline since %s, and the VM on it is unreachable; it is started again when the host returns; to replace the Node on another host, delete its NodeClaim",
			host.Name, host.Region, now))
	case changed && name == host.Name: // otherwise the VM was migrated
		c.reporter.Publish(ctx, claim, corev1.EventTypeNormal, v1alpha1.EventHostOnline, fmt.Sprintf("Host %s in region %s is online again; it was offline since %s", host.Name, host.Region, since))
	}
}
