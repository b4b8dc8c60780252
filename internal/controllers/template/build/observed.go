// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// Observed are the Kubernetes objects that reconciling Templates depends on.
type Observed struct {
	Desired []template.Desired
	Classes []v1alpha1.ProxmoxNodeClass
	Claims  []karpv1.NodeClaim

	templates []v1alpha1.ProxmoxTemplate // in the order of Desired
}

// Observe lists the objects. They are those of the cache and must not be changed. It
// fails if one of the lists fails.
func Observe(ctx context.Context, kube client.Client) (Observed, error) {
	claims := &karpv1.NodeClaimList{}
	if err := kube.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
		return Observed{}, fmt.Errorf("listing NodeClaims for templates: %w", err)
	}
	o, err := observeDesired(ctx, kube)
	o.Claims = claims.Items
	return o, err
}

// observeDesired lists the objects except Claims, of which there are many.
func observeDesired(ctx context.Context, kube client.Client) (Observed, error) {
	templates, classes := &v1alpha1.ProxmoxTemplateList{}, &v1alpha1.ProxmoxNodeClassList{}
	for _, list := range []client.ObjectList{templates, classes} {
		if err := kube.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return Observed{}, fmt.Errorf("listing objects for templates: %w", err)
		}
	}
	o := Observed{Classes: classes.Items, templates: templates.Items}
	for i := range templates.Items {
		o.Desired = append(o.Desired, template.NewDesired(&templates.Items[i], classes.Items))
	}
	return o, nil
}

// HostsToKeepAwake returns the Hosts that must not sleep, because Templates are to be built or
// deleted there, with the names of their ProxmoxTemplates.
func HostsToKeepAwake(ctx context.Context, kube client.Client, templates *template.Provider) (map[observed.HostName][]string, error) {
	found, err := Observe(ctx, kube)
	if err != nil {
		return nil, err
	}
	hosts := map[observed.HostName][]string{}
	for n, desired := range found.Desired {
		inUse := func(region string, vmid int) string {
			return found.inUse(templates, &found.templates[n], region, vmid)
		}
		for _, host := range templates.HostsToKeepAwake(desired, inUse) {
			hosts[host] = append(hosts[host], desired.Name)
		}
	}
	return hosts, nil
}

// ListUsage returns the function that lists the usage of the Templates of one
// ProxmoxTemplate.
func ListUsage(kube client.Client, templates *template.Provider, t *v1alpha1.ProxmoxTemplate) template.ListUsage {
	return func(ctx context.Context) (template.Usage, error) {
		current := &v1alpha1.ProxmoxTemplate{}
		if err := kube.Get(ctx, client.ObjectKeyFromObject(t), current); err != nil || current.UID != t.UID {
			current = t
			if client.IgnoreNotFound(err) != nil {
				return template.Usage{}, fmt.Errorf("reading template %s: %w", t.Name, err)
			}
		}
		found, err := Observe(ctx, kube)
		return template.Usage{Desired: found.Desired, InUse: func(region string, vmid int) string { return found.inUse(templates, current, region, vmid) }}, err
	}
}

// inUse returns why a Template is needed, or "": it is in a status that launches are
// planned with, or VMs are linked clones of it. A VM that is not configured or was not read counts if it
// was planned with the image.
func (o Observed) inUse(templates *template.Provider, t *v1alpha1.ProxmoxTemplate, region string, vmid int) string {
	if linked := o.linkedClones(templates, region, vmid); linked > 0 {
		return fmt.Sprintf("%d nodes are linked clones of it", linked)
	}
	if !t.DeletionTimestamp.IsZero() {
		if users := o.ClaimsUsing(v1alpha1.ProxmoxTemplateKind, t.Name); len(users) > 0 {
			return fmt.Sprintf("%d NodeClaims still use the ProxmoxTemplate", len(users))
		}
		return ""
	}
	if containsTemplate(t.Status.Zones, region, vmid) {
		return "it is in use until the new generation is on every host"
	}
	for _, class := range o.Classes {
		if containsTemplate(class.Status.SelectedZones, region, vmid) {
			return fmt.Sprintf("NodeClass %s still uses it", class.Name)
		}
	}
	return ""
}

// linkedClones counts the Claims whose VMs are, or may be, linked clones of a Template.
func (o Observed) linkedClones(templates *template.Provider, region string, vmid int) int {
	view, linked := templates.Inventory().View(), 0
	image := imageOf(view, region, vmid)
	for i := range o.Claims {
		in, ok := instance.IntentIn(view, templates.KubeCluster(), &o.Claims[i])
		switch {
		case !ok, in.Region != region, in.Parked:
		case in.Known && in.TemplateID == vmid && !in.FullClone, !in.Known && image != "" && in.ImageID == image:
			linked++
		}
	}
	return linked
}

// imageOf returns the image of a Template; empty if it is not known.
func imageOf(view inventory.View, region string, vmid int) string {
	guest, ok := view.Guest(region, vmid)
	if !ok || guest.Config == nil {
		return ""
	}
	return ownership.ImageID(vmid, *guest.Config)
}

func containsTemplate(zones []string, region string, vmid int) bool {
	return slices.ContainsFunc(zones, func(entry string) bool {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		return err == nil && zone.Region == region && zone.VMID == vmid
	})
}

// ClaimsUsing returns the names of the Claims of all classes that refer to a template.
func (o Observed) ClaimsUsing(kind, name string) []string {
	classes := map[string]bool{}
	for _, class := range o.Classes {
		ref := class.Spec.InstanceTemplateRef
		classes[class.Name] = ref.Kind == kind && ref.Name == name
	}
	var out []string
	for _, claim := range o.Claims {
		if claim.Spec.NodeClassRef != nil && claim.Spec.NodeClassRef.Kind == v1alpha1.ProxmoxNodeClassKind && classes[claim.Spec.NodeClassRef.Name] {
			out = append(out, claim.Name)
		}
	}
	return out
}

// Users returns a function that lists the Claims that use a template.
func Users[T client.Object](kube client.Client, kind string) func(context.Context, T) ([]string, error) {
	return func(ctx context.Context, object T) ([]string, error) {
		found, err := Observe(ctx, kube)
		return found.ClaimsUsing(kind, object.GetName()), err
	}
}

// UserDeleted returns a handler that reconciles the template of a deleted Claim's class, which waits
// for its last Claim.
func UserDeleted(kube client.Client, kind string) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
		claim, ok := o.(*karpv1.NodeClaim)
		if !ok || !instance.IsOurs(o) {
			return nil
		}
		class := &v1alpha1.ProxmoxNodeClass{}
		if err := kube.Get(ctx, client.ObjectKey{Name: claim.Spec.NodeClassRef.Name}, class); err != nil || class.Spec.InstanceTemplateRef.Kind != kind {
			return nil
		}
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: class.Spec.InstanceTemplateRef.Name}}}
	})
}
