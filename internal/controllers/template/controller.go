// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package template reports for each ProxmoxTemplate which Hosts have it, the progress on
// the other Hosts, and what to fix there.
package template

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/readiness"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// recheckInterval is how often facts are read again that prevent a Template.
const recheckInterval = 20 * time.Second

// Controller writes the status of ProxmoxTemplates.
type Controller struct {
	kube         client.Client
	templates    *template.Provider
	preparations *preparations
}

// NewController returns a Controller.
func NewController(kube client.Client, templates *template.Provider, check CheckPreparation) *Controller {
	return &Controller{kube: kube, templates: templates, preparations: newPreparations(check)}
}

// Register adds the Controller to the manager.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("template.status.proxmox").
		For(&v1alpha1.ProxmoxTemplate{}).
		WatchesRawSource(watch.Inventory(ctx, c.templates.Inventory(), m.GetClient(), &v1alpha1.ProxmoxTemplateList{})).
		WatchesRawSource(watch.Events(c.templates.Subscribe(), m.GetClient(), &v1alpha1.ProxmoxTemplateList{})).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile writes the status of one ProxmoxTemplate.
func (c *Controller) Reconcile(ctx context.Context, t *v1alpha1.ProxmoxTemplate) (reconcile.Result, error) {
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if err := c.kube.List(ctx, classes); err != nil {
		return reconcile.Result{}, err
	}
	stored := t.DeepCopy()
	problem, recheck := c.reconcilePreparation(ctx, t, classes.Items)
	desired := template.NewDesired(t, classes.Items)
	desired.Problem = problem
	c.templates.CancelSuperseded(desired)
	if desired.Deleted {
		return reconcile.Result{}, nil
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
	readiness.SetCause(t)
	result := reconcile.Result{RequeueAfter: recheck}
	if len(report.FailedFacts) > 0 {
		result.RequeueAfter = recheckInterval
	}
	if equality.Semantic.DeepEqual(stored, t) {
		return result, nil
	}
	// Optimistic lock, because the patch replaces the whole list of conditions.
	err := c.kube.Status().Patch(ctx, t, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		// Another controller wrote first; its update triggers a new reconcile.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return result, client.IgnoreNotFound(err)
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
