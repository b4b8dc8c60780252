// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reachability reports Claims that an administrator has to act on because their
// region is not in the cloud config. It checks all Claims at startup and then regularly.
package reachability

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	"github.com/awslabs/operatorpkg/singleton"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

const (
	// interval between two checks.
	interval = time.Minute
	// eventInterval is how often an event is repeated. Kubernetes keeps events for an hour.
	eventInterval = 30 * time.Minute
)

// Controller checks Claims.
type Controller struct {
	kube     client.Client
	vms      *instance.Provider
	recorder events.Recorder
	// unconfigured are the Claims that were logged, by region.
	unconfigured map[string][]string
}

// NewController returns a Controller.
func NewController(kube client.Client, vms *instance.Provider, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, vms: vms, recorder: recorder}
}

// Register registers the Controller with a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("nodeclaim.reachability").
		WatchesRawSource(singleton.Source()).Complete(singleton.AsReconciler(c))
}

// Reconcile checks all Claims. It logs the Claims of regions that are not configured when
// their number changes.
func (c *Controller) Reconcile(ctx context.Context) (reconciler.Result, error) {
	claims := &karpv1.NodeClaimList{}
	if err := c.kube.List(ctx, claims); err != nil {
		return reconciler.Result{}, fmt.Errorf("listing NodeClaims: %w", err)
	}
	unconfigured := map[string][]string{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if blocked := c.vms.CheckRegion(claim); blocked != nil {
			if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil {
				unconfigured[id.Region] = append(unconfigured[id.Region], claim.Name)
			}
			c.recorder.Publish(newEvent(claim, blocked.Reason, blocked.Message))
		}
	}
	for region, names := range unconfigured {
		slices.Sort(names)
		if !slices.Equal(c.unconfigured[region], names) {
			log.FromContext(ctx).Error(nil, "NodeClaims of regions that are not in the cloud config", "region", region, "NodeClaims", names)
		}
	}
	c.unconfigured = unconfigured
	return reconciler.Result{RequeueAfter: interval}, nil
}

func newEvent(claim *karpv1.NodeClaim, reason, message string) events.Event {
	return events.Event{
		InvolvedObject: claim, Type: corev1.EventTypeWarning, Reason: reason, Message: message,
		DedupeValues: []string{string(claim.UID), reason}, DedupeTimeout: eventInterval,
	}
}
