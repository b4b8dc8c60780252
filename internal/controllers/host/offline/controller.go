// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package offline reports Hosts that go offline and return: on the Claims of their VMs and
// on the Nodes of these.
package offline

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// retryInterval is when a Claim is reconciled again whose Cluster is unavailable.
const retryInterval = 30 * time.Second

// Controller reports Hosts that go offline and return.
type Controller struct {
	reporter  report.Reporter
	launches  *instance.LaunchTracker
	vms       *instance.Provider
	inventory *inventory.Inventory
}

// NewController returns a Controller.
func NewController(kube client.Client, vms *instance.Provider, launches *instance.LaunchTracker, inv *inventory.Inventory, recorder events.Recorder) *Controller {
	return &Controller{reporter: report.Reporter{Kube: kube, Recorder: recorder}, vms: vms, launches: launches, inventory: inv}
}

// Register registers the Controller.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("host.offline.proxmox").
		For(&karpv1.NodeClaim{}, builder.WithPredicates(predicate.NewPredicateFuncs(instance.IsOurs))).
		WatchesRawSource(watch.Events(watch.Hosts(ctx, c.inventory, offlineSince), m.GetClient(), &karpv1.NodeClaimList{})).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// offlineSince returns which Host is offline and since when; empty if it is online.
func offlineSince(host inventory.HostState) string {
	if host.OfflineSince.IsZero() || host.Sleep != "" {
		return ""
	}
	return host.Name + separator + host.OfflineSince.UTC().Format(time.RFC3339)
}

const separator = " since "

// Reconcile reports whether the Host of one Claim went offline or returned. While the Cluster is
// unavailable nothing is known about the Host.
func (c *Controller) Reconcile(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !instance.IsOurs(claim) || !claim.DeletionTimestamp.IsZero() {
		return reconcile.Result{}, nil
	}
	host, known := c.vms.HostOf(claim)
	if !known || c.vms.IsUnavailable(claim) {
		return reconcile.Result{RequeueAfter: retryInterval}, nil
	}
	state := offlineSince(host)
	before, _ := c.launches.Report(string(claim.UID), "offline", state)
	changed := before != state // a new leader reports what it finds: the last one may have died with the Host
	name, since, _ := strings.Cut(before, separator)
	switch {
	case changed && state != "":
		c.reporter.Publish(ctx, claim, corev1.EventTypeWarning, v1alpha1.EventHostOffline, fmt.Sprintf(
			"Host %s in region %s is offline since %s, and the VM on it is unreachable; it is started again when the host returns; to replace the Node on another host, delete its NodeClaim",
			host.Name, host.Region, host.OfflineSince.UTC().Format(time.RFC3339)))
	case changed && name == host.Name: // otherwise the VM was migrated
		c.reporter.Publish(ctx, claim, corev1.EventTypeNormal, v1alpha1.EventHostOnline, fmt.Sprintf("Host %s in region %s is online again; it was offline since %s", host.Name, host.Region, since))
	}
	return reconcile.Result{}, nil
}
