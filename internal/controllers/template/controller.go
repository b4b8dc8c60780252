// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package template reports for each ProxmoxTemplate which Hosts have it, the progress on
// the other Hosts, and what to fix there. It keeps a deleted one until no NodeClaim uses it, and its
// Templates and images are deleted.
package template

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/lifecycle"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/template/build"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// Controller reconciles ProxmoxTemplates.
type Controller struct {
	lifecycle.Reconciler[*v1alpha1.ProxmoxTemplate]
	templates *template.Provider
	check     CheckPreparation
	// preparations are the hashes of valid boot data.
	preparations *due.Cache[types.UID, string]
}

// NewController returns a Controller.
func NewController(kube client.Client, templates *template.Provider, recorder events.Recorder, check CheckPreparation) *Controller {
	c := &Controller{
		templates: templates, check: check,
		preparations: due.New[types.UID, string](templates.Clock(), func(types.UID) due.Policy { return due.Policy{Every: watch.Again} }),
	}
	c.Reconciler = lifecycle.Reconciler[*v1alpha1.ProxmoxTemplate]{
		Kube: kube, Recorder: recorder, Kind: "template", Cleanup: c.cleanup, SetStatus: c.setStatus,
		Users: build.Users[*v1alpha1.ProxmoxTemplate](kube, v1alpha1.ProxmoxTemplateKind),
	}
	return c
}

// Register adds the Controller to the manager.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("template.lifecycle.proxmox").
		For(&v1alpha1.ProxmoxTemplate{}).
		Watches(&karpv1.NodeClaim{}, build.UserDeleted(c.Kube, v1alpha1.ProxmoxTemplateKind), builder.WithPredicates(watch.Deletions())).
		WatchesRawSource(watch.Inventory(ctx, c.templates.Inventory(), m.GetClient(), &v1alpha1.ProxmoxTemplateList{})).
		WatchesRawSource(watch.Events(c.templates.Subscribe(), m.GetClient(), &v1alpha1.ProxmoxTemplateList{})).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// cleanup deletes the Templates and images of a deleted ProxmoxTemplate and returns what remains.
func (c *Controller) cleanup(ctx context.Context, t *v1alpha1.ProxmoxTemplate) ([]string, error) {
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if err := c.Kube.List(ctx, classes); err != nil {
		return nil, err
	}
	desired := template.NewDesired(t, classes.Items)
	c.templates.CancelSuperseded(desired)
	if remaining := c.templates.Remaining(desired); len(remaining) > 0 {
		return remaining, nil
	}
	remaining, err := c.templates.Cleanup(ctx, desired, build.ListUsage(c.Kube, c.templates, t))
	if err == nil && len(remaining) == 0 {
		c.templates.Evict(desired.UID)
	}
	return remaining, err
}

// setStatus reports the Templates of one ProxmoxTemplate.
func (c *Controller) setStatus(ctx context.Context, t *v1alpha1.ProxmoxTemplate) (time.Duration, error) {
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if err := c.Kube.List(ctx, classes); err != nil {
		return 0, err
	}
	problem, recheck := c.reconcilePreparation(ctx, t, classes.Items)
	desired := template.NewDesired(t, classes.Items)
	desired.Problem = problem
	c.templates.CancelSuperseded(desired)
	if desired.Deleted {
		return 0, nil
	}
	c.recordMissing(t)
	report := c.templates.Report(desired, t.Status.Zones)
	for region, facts := range report.FailedFacts {
		c.templates.Inventory().Invalidate(region, facts...)
	}
	t.Status.ImageID = report.ImageID
	t.Status.Zones = nil
	for _, zone := range report.Zones {
		t.Status.Zones = append(t.Status.Zones, zone.String())
	}
	t.Status.Resources = corev1.ResourceList{v1alpha1.ResourceZones: *resource.NewQuantity(int64(len(report.Zones)), resource.DecimalSI)}
	setConditions(t, report)
	lifecycle.SetCause(t)
	if len(report.FailedFacts) > 0 {
		return watch.Again, nil
	}
	return recheck, nil
}

// recordMissing records the Templates in the status that no longer exist, so the
// condition reports that they are recreated.
func (c *Controller) recordMissing(t *v1alpha1.ProxmoxTemplate) {
	view := c.templates.Inventory().View()
	for _, entry := range t.Status.Zones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || view.Snapshots[zone.Region] == nil {
			continue
		}
		_, exists := view.Guest(zone.Region, zone.VMID)
		if _, member := view.Host(zone.Region, zone.Host); member && !exists {
			c.templates.RecordMissing(string(t.UID), zone)
		}
	}
}

func setConditions(t *v1alpha1.ProxmoxTemplate, r template.Report) {
	set := t.StatusConditions()
	reason := v1alpha1.ReasonTemplateBuilding
	if r.Failing {
		reason = v1alpha1.ReasonTemplateResolutionError
	}
	switch {
	case len(r.Zones) > 0 && r.Usable:
		set.SetTrueWithReason(v1alpha1.ConditionTemplateReady, v1alpha1.ConditionTemplateReady, r.Message)
	case r.Unread && !r.Failing:
		set.SetUnknownWithReason(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonClustersNotPolled, "a Proxmox cluster has not been polled yet")
	default:
		set.SetFalse(v1alpha1.ConditionTemplateReady, reason, r.Message)
	}
	switch {
	case r.Complete:
		set.SetTrueWithReason(v1alpha1.ConditionTemplateUpToDate, v1alpha1.ConditionTemplateUpToDate, r.Message)
	case r.Unread && !r.Failing:
		set.SetUnknownWithReason(v1alpha1.ConditionTemplateUpToDate, v1alpha1.ReasonClustersNotPolled, "a Proxmox cluster has not been polled yet")
	default:
		set.SetFalse(v1alpha1.ConditionTemplateUpToDate, reason, r.Message)
	}
}
