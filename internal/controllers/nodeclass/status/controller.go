// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package status tells for each ProxmoxNodeClass whether its VMs can be launched,
// where, and if not, what to mend.
package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/wake"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// recheck is how often Secrets are looked at again: they are not watched, since
// that would mean to hold all of the cluster's.
const recheck = time.Minute

// Controller checks NodeClasses.
type Controller struct {
	kube      client.Client
	inventory *inventory.Inventory
	instances *instance.Provider

	mu      sync.Mutex
	checked map[string]check // by name of the class
}

// check is when the boot data of a class was last rendered, and how that went.
type check struct {
	uid        types.UID
	generation int64
	at         time.Time
	err        error
}

// NewController makes the Controller.
func NewController(kube client.Client, inv *inventory.Inventory, instances *instance.Provider) *Controller {
	return &Controller{kube: kube, inventory: inv, instances: instances, checked: map[string]check{}}
}

// Register the Controller.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("nodeclass.status.proxmox").
		For(&v1alpha1.ProxmoxNodeClass{}).
		Watches(&v1alpha1.ProxmoxUnmanagedTemplate{}, handler.EnqueueRequestsFromMapFunc(c.users(v1alpha1.ProxmoxUnmanagedTemplateKind))).
		Watches(&v1alpha1.ProxmoxTemplate{}, handler.EnqueueRequestsFromMapFunc(c.users(v1alpha1.ProxmoxTemplateKind))).
		WatchesRawSource(wake.OnInventory(ctx, c.inventory, m.GetClient(), &v1alpha1.ProxmoxNodeClassList{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 10}).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// users finds the classes that refer to a template.
func (c *Controller) users(kind string) handler.MapFunc {
	return func(ctx context.Context, template client.Object) []reconcile.Request {
		classes := &v1alpha1.ProxmoxNodeClassList{}
		if err := c.kube.List(ctx, classes); err != nil {
			return nil
		}
		var out []reconcile.Request
		for _, class := range classes.Items {
			if class.Spec.InstanceTemplateRef.Kind == kind && class.Spec.InstanceTemplateRef.Name == template.GetName() {
				out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: class.Name}})
			}
		}
		return out
	}
}

// Reconcile checks one NodeClass and writes its status in one patch.
func (c *Controller) Reconcile(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (reconcile.Result, error) {
	stored := class.DeepCopy()
	view := c.inventory.View()
	if ready := class.StatusConditions().Root(); ready.ObservedGeneration != 0 && ready.ObservedGeneration != class.Generation {
		c.instances.Forgive(class.Name)
		_ = class.StatusConditions().Clear(v1alpha1.ConditionLaunchesSucceed)
	}
	c.clusters(class, view)
	if err := c.template(ctx, class, view); err != nil {
		return reconcile.Result{}, err
	}
	c.bootData(ctx, class)
	c.launches(class, view)
	if !equality.Semantic.DeepEqual(stored, class) {
		// The conditions are a list and written whole, hence the optimistic lock.
		err := c.kube.Status().Patch(ctx, class, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
		if apierrors.IsConflict(err) {
			// Another controller wrote first; what it wrote brings us back here.
			return reconcile.Result{RequeueAfter: time.Second}, nil
		}
		if err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	return reconcile.Result{RequeueAfter: recheck}, nil
}

// regions that a class may use.
func (c *Controller) regions(class *v1alpha1.ProxmoxNodeClass) []string {
	if class.Spec.Region != "" {
		return []string{class.Spec.Region}
	}
	return c.inventory.Regions()
}

// clusters: one that answers is enough; the others are named.
func (c *Controller) clusters(class *v1alpha1.ProxmoxNodeClass, view inventory.View) {
	conditions := class.StatusConditions()
	known := c.inventory.Regions()
	if class.Spec.Region != "" && !slices.Contains(known, class.Spec.Region) {
		conditions.SetFalse(v1alpha1.ConditionClustersReachable, "RegionNotFound",
			fmt.Sprintf("spec.region %q is not in the cloud config, which has %s", class.Spec.Region, strings.Join(known, ", ")))
		return
	}
	var failures []string
	answering, unread := 0, 0
	for _, region := range c.regions(class) {
		switch failure := view.Failures[region]; {
		case failure != nil:
			failures = append(failures, unreachable(region, failure))
		case view.Snapshots[region] == nil:
			unread++
		default:
			answering++
		}
	}
	switch {
	case answering > 0:
		conditions.SetTrueWithReason(v1alpha1.ConditionClustersReachable, v1alpha1.ConditionClustersReachable, strings.Join(failures, "; "))
	case unread > 0 && conditions.Get(v1alpha1.ConditionClustersReachable).IsTrue():
		// So it was before this controller started; the first reading will tell.
	case unread > 0:
		conditions.SetUnknownWithReason(v1alpha1.ConditionClustersReachable, "ClustersNotRead", "no Proxmox cluster was read yet")
	default:
		conditions.SetFalse(v1alpha1.ConditionClustersReachable, "ClustersUnreachable", strings.Join(failures, "; "))
	}
}

// unreachable says since when and why a Cluster does not answer, and what to do.
// It leaves out how often it was asked: the condition would change at each poll.
func unreachable(region string, failure error) string {
	since := ""
	if poll, ok := errors.AsType[*inventory.PollError](failure); ok {
		since, failure = " since "+poll.Since.UTC().Format(time.RFC3339), poll.Err
	}
	return fmt.Sprintf("region %s%s: %v", region, since, proxmox.Explain(failure))
}

// template selects the Hosts: those that have the Template and what a launch
// needs beside it. For each of the others the status says why not.
func (c *Controller) template(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, view inventory.View) error {
	conditions := class.StatusConditions()
	source, err := c.zonesOf(ctx, class.Spec.InstanceTemplateRef)
	if err != nil {
		return err
	}
	selected, unusable := choose(view, c.regions(class), class, source, c.cloneVerdict(class, view))
	class.Status.SelectedZones = selected
	class.Status.UnusableZones = unusable
	class.Status.Resources = corev1.ResourceList{v1alpha1.ResourceZones: *resource.NewQuantity(int64(len(selected)), resource.DecimalSI)}
	switch {
	case len(selected) > 0:
		conditions.SetTrue(v1alpha1.ConditionInstanceTemplateReady)
	case source.problem != "":
		conditions.SetFalse(v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, source.problem)
	case len(view.Snapshots) == 0:
		conditions.SetUnknownWithReason(v1alpha1.ConditionInstanceTemplateReady, "ClustersNotRead", "no Proxmox cluster was read yet")
	default:
		conditions.SetFalse(v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, explain(unusable))
	}
	return nil
}

// zoneSource is what the template object says.
type zoneSource struct {
	zones   []string
	problem string
}

func (c *Controller) zonesOf(ctx context.Context, ref v1alpha1.InstanceTemplateReference) (zoneSource, error) {
	var object client.Object
	var status *v1alpha1.ProxmoxTemplateStatus
	switch ref.Kind {
	case v1alpha1.ProxmoxTemplateKind:
		template := &v1alpha1.ProxmoxTemplate{}
		object, status = template, &template.Status
	default:
		template := &v1alpha1.ProxmoxUnmanagedTemplate{}
		object, status = template, &template.Status
	}
	if err := c.kube.Get(ctx, types.NamespacedName{Name: ref.Name}, object); err != nil {
		if client.IgnoreNotFound(err) != nil {
			return zoneSource{}, fmt.Errorf("reading %s %s, %w", ref.Kind, ref.Name, err)
		}
		return zoneSource{problem: fmt.Sprintf("spec.instanceTemplateRef names %s %q, which does not exist", ref.Kind, ref.Name)}, nil
	}
	if len(status.Zones) == 0 {
		problem := fmt.Sprintf("%s %q is on no host yet", ref.Kind, ref.Name)
		for _, condition := range status.Conditions {
			if condition.Type == v1alpha1.ConditionTemplateReady && condition.Message != "" {
				problem += ": " + condition.Message
			}
		}
		return zoneSource{problem: problem}, nil
	}
	return zoneSource{zones: status.Zones}, nil
}

// choose splits the known Hosts into usable and not.
func choose(view inventory.View, regions []string, class *v1alpha1.ProxmoxNodeClass, source zoneSource, clone verdict) (selected []string, unusable []v1alpha1.UnusableZone) {
	templates := map[string]v1alpha1.TemplateZone{}
	for _, entry := range source.zones {
		if zone, err := v1alpha1.ParseTemplateZone(entry); err == nil {
			templates[zone.Zone()] = zone
		}
	}
	for _, region := range regions {
		snapshot, ok := view.Snapshots[region]
		if !ok {
			// Never read since the start: what was found before stays. A zone that
			// vanished from the status would drift the Nodes in it.
			selected = append(selected, inRegion(class.Status.SelectedZones, region, func(zone string) string { return zone })...)
			unusable = append(unusable, inRegion(class.Status.UnusableZones, region, func(zone v1alpha1.UnusableZone) string { return zone.Zone })...)
			continue
		}
		for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
			zone, has := templates[region+"/"+host]
			reason := ""
			if !has {
				reason = fmt.Sprintf("%s %q is not on this host", class.Spec.InstanceTemplateRef.Kind, class.Spec.InstanceTemplateRef.Name)
			} else if !snapshot.Hosts[host].Online {
				// What it has is not to be seen now; that it is away, offerings tell.
				reason = ""
			} else if reason = cmp.Or(lacking(snapshot, host, class), outOfReach(snapshot, zone, class)); reason == "" {
				reason, _ = clone(zone)
			}
			if reason != "" {
				unusable = append(unusable, v1alpha1.UnusableZone{Zone: region + "/" + host, Reason: reason})
				continue
			}
			selected = append(selected, zone.String())
		}
	}
	return selected, unusable
}

// inRegion keeps the zones of one region.
func inRegion[Z any](zones []Z, region string, name func(Z) string) []Z {
	var out []Z
	for _, zone := range zones {
		if strings.HasPrefix(name(zone), region+"/") {
			out = append(out, zone)
		}
	}
	return out
}

// lacking says what a Host misses for a launch, beside the Template.
func lacking(snapshot *inventory.Snapshot, host string, class *v1alpha1.ProxmoxNodeClass) string {
	if storage := class.Spec.BootDevice.Storage; storage != "" {
		row, ok := snapshot.Storages[inventory.StorageKey{Host: host, Storage: storage}]
		switch {
		case !ok:
			return fmt.Sprintf("spec.bootDevice.storage %q is not on this host", storage)
		case !slices.Contains(row.Content, "images"):
			return fmt.Sprintf("spec.bootDevice.storage %q takes %s but no disk images; run: pvesm set %s --content images,%s", storage, strings.Join(row.Content, ","), storage, strings.Join(row.Content, ","))
		}
	}
	if class.Spec.MetadataOptions.CDROM() {
		if _, err := instance.ISOStorage(snapshot, host, class.Spec.MetadataOptions.Storage); err != nil {
			return err.Error()
		}
	}
	return ""
}

func explain(unusable []v1alpha1.UnusableZone) string {
	if len(unusable) == 0 {
		return "no host is known in the class's regions"
	}
	parts := make([]string, 0, len(unusable))
	for _, zone := range unusable {
		parts = append(parts, zone.Zone+": "+zone.Reason)
	}
	return strings.Join(parts, "; ")
}

// checkBootData renders the templates, unless that was done a moment ago for the same
// class: the inventory changes often, Secrets seldom.
func (c *Controller) checkBootData(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	c.mu.Lock()
	last, ok := c.checked[class.Name]
	c.mu.Unlock()
	now := c.instances.Clock.Now()
	if ok && last.uid == class.UID && last.generation == class.Generation && last.err == nil && now.Sub(last.at) < recheck/2 {
		return nil
	}
	err := c.instances.CheckBootData(ctx, class)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checked[class.Name] = check{uid: class.UID, generation: class.Generation, at: now, err: err}
	return err
}

// bootData renders the templates for an imaginary VM.
func (c *Controller) bootData(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) {
	conditions := class.StatusConditions()
	if !class.Spec.MetadataOptions.CDROM() {
		conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
		return
	}
	if err := c.checkBootData(ctx, class); err != nil {
		conditions.SetFalse(v1alpha1.ConditionInstanceMetadataOptionsReady, v1alpha1.ReasonMetadataOptionsNotFound, err.Error())
		return
	}
	conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
}

// verdict says why clones are too slow in a zone, or that they are close to it.
type verdict func(v1alpha1.TemplateZone) (refusal, warning string)

// cloneVerdict judges by how long clones took, as learned.
func (c *Controller) cloneVerdict(class *v1alpha1.ProxmoxNodeClass, view inventory.View) verdict {
	return func(zone v1alpha1.TemplateZone) (refusal, warning string) {
		storage := class.Spec.BootDevice.Storage
		if template, ok := view.Guest(zone.Region, zone.VMID); storage == "" && ok && template.Config != nil {
			if disk, ok := template.Config.BootDisk(); ok {
				storage = disk.Storage
			}
		}
		return c.instances.CloneVerdict(zone.Region, zone.Host, storage)
	}
}

// launches tells how launches go. It is no part of Ready: a class whose launches
// fail is still worth a try on the hosts that are left.
func (c *Controller) launches(class *v1alpha1.ProxmoxNodeClass, view inventory.View) {
	conditions := class.StatusConditions()
	known, failing, reason, message := c.instances.LaunchHealth(class.Name)
	if failing {
		conditions.SetFalse(v1alpha1.ConditionLaunchesSucceed, reason, message)
		return
	}
	clone := c.cloneVerdict(class, view)
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil {
			continue
		}
		if _, warning := clone(zone); warning != "" {
			conditions.SetFalse(v1alpha1.ConditionLaunchesSucceed, instance.ReasonSlowClone, zone.Zone()+": "+warning)
			return
		}
	}
	if known {
		conditions.SetTrue(v1alpha1.ConditionLaunchesSucceed)
	}
}
