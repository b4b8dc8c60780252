// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package status finds, for each ProxmoxUnmanagedTemplate, the Templates on the
// Hosts that it describes.
package status

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/readiness"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// Controller resolves Templates.
type Controller struct {
	kube      client.Client
	inventory *inventory.Inventory
	recorder  events.Recorder
}

// NewController makes the Controller.
func NewController(kube client.Client, inv *inventory.Inventory, recorder events.Recorder) *Controller {
	return &Controller{kube: kube, inventory: inv, recorder: recorder}
}

// Register the Controller.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("unmanagedtemplate.status.proxmox").
		For(&v1alpha1.ProxmoxUnmanagedTemplate{}).
		WatchesRawSource(watch.Inventory(ctx, c.inventory, m.GetClient(), &v1alpha1.ProxmoxUnmanagedTemplateList{})).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

// Reconcile writes the status of one template.
func (c *Controller) Reconcile(ctx context.Context, template *v1alpha1.ProxmoxUnmanagedTemplate) (reconcile.Result, error) {
	stored := template.DeepCopy()
	for _, double := range Resolve(c.inventory, template) {
		c.recorder.Publish(ambiguous(template, double))
	}
	if equality.Semantic.DeepEqual(stored, template) {
		return reconcile.Result{}, nil
	}
	// The conditions are a list and written whole, hence the optimistic lock.
	err := c.kube.Status().Patch(ctx, template, client.MergeFromWithOptions(stored, client.MergeFromWithOptimisticLock{}))
	if apierrors.IsConflict(err) {
		// Somebody wrote first; what they wrote brings us back here.
		return reconcile.Result{RequeueAfter: time.Second}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}

// Resolve fills in the status of a template object, and tells where several Templates
// fit.
func Resolve(inv *inventory.Inventory, template *v1alpha1.ProxmoxUnmanagedTemplate) []Double {
	view := inv.View()
	found, doubles := find(view, template.Spec)
	found = append(found, unread(view, inv.Regions(), template.Status.Zones)...)
	template.Status.Zones = found
	template.Status.Resources = corev1.ResourceList{v1alpha1.ResourceZones: *resource.NewQuantity(int64(len(found)), resource.DecimalSI)}
	conditions := template.StatusConditions()
	switch {
	case len(found) > 0:
		conditions.SetTrueWithReason(v1alpha1.ConditionTemplateReady, v1alpha1.ConditionTemplateReady, chosen(doubles))
	case !everyClusterSeen(view, inv.Regions(), template.Spec.Region):
		conditions.SetUnknownWithReason(v1alpha1.ConditionTemplateReady, "ClustersNotRead", "not every Proxmox cluster was read yet")
	default:
		conditions.SetFalse(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplatesNotFound, notFound(template.Spec, inv.Regions()))
	}
	readiness.SetCause(template)
	return doubles
}

// unread keeps what was found before in Clusters that were never read since the
// start: that they do not answer does not take their Templates away.
func unread(view inventory.View, regions, before []string) []string {
	var out []string
	for _, entry := range before {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || !slices.Contains(regions, zone.Region) {
			continue
		}
		if _, read := view.Snapshots[zone.Region]; !read {
			out = append(out, entry)
		}
	}
	return out
}

// Double is a Host with several Templates that fit.
type Double struct {
	zone   string
	chosen int
	others []int
}

// find lists for each Host the Template that serves it, as <region>/<host>/<vmid>: one
// of its own, or one whose storage the Host shares. Where several fit, it is the
// newest by Proxmox's own creation time, then the one on the Host itself, then that
// with the highest VMID.
func find(view inventory.View, spec v1alpha1.ProxmoxUnmanagedTemplateSpec) (zones []string, doubles []Double) {
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		if spec.Region != "" && spec.Region != region {
			continue
		}
		snapshot := view.Snapshots[region]
		var matching []inventory.Guest
		for _, guest := range snapshot.Guests {
			if matches(guest, spec) {
				matching = append(matching, guest)
			}
		}
		for _, host := range hostsOf(snapshot, matching) {
			candidates := slices.DeleteFunc(slices.Clone(matching), func(guest inventory.Guest) bool {
				return !template.CanClone(snapshot, guest.Host, *guest.Config, host)
			})
			if len(candidates) == 0 {
				continue
			}
			slices.SortFunc(candidates, func(a, b inventory.Guest) int { return preferredOn(host, a, b) })
			zone := v1alpha1.TemplateZone{Region: region, Host: host, VMID: candidates[0].VMID}
			zones = append(zones, zone.String())
			if len(candidates) > 1 {
				d := Double{zone: zone.Zone(), chosen: zone.VMID}
				for _, other := range candidates[1:] {
					d.others = append(d.others, other.VMID)
				}
				doubles = append(doubles, d)
			}
		}
	}
	return zones, doubles
}

// hostsOf are the Hosts that are known, or that a Template was seen on.
func hostsOf(snapshot *inventory.Snapshot, guests []inventory.Guest) []string {
	hosts := slices.Collect(maps.Keys(snapshot.Hosts))
	for _, guest := range guests {
		hosts = append(hosts, guest.Host)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func matches(guest inventory.Guest, spec v1alpha1.ProxmoxUnmanagedTemplateSpec) bool {
	if !guest.Template || guest.Config == nil || guest.IsSlot() {
		return false // a slot is for one VM, not for all
	}
	if spec.TemplateName != "" && spec.TemplateName != guest.Name {
		return false
	}
	for _, tag := range spec.Tags {
		if !slices.ContainsFunc(guest.Tags, func(have string) bool { return strings.EqualFold(have, tag) }) {
			return false
		}
	}
	return true
}

func preferredOn(host string, a, b inventory.Guest) int {
	own := func(guest inventory.Guest) int {
		if guest.Host == host {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(template.CreationTime(*b.Config), template.CreationTime(*a.Config)), own(b)-own(a), cmp.Compare(b.VMID, a.VMID))
}

func everyClusterSeen(view inventory.View, regions []string, only string) bool {
	for _, region := range regions {
		if only != "" && only != region {
			continue
		}
		if _, ok := view.Snapshots[region]; !ok {
			return false
		}
	}
	return true
}

func notFound(spec v1alpha1.ProxmoxUnmanagedTemplateSpec, regions []string) string {
	where := "region " + spec.Region
	if spec.Region == "" {
		where = "regions " + strings.Join(regions, ", ")
	} else if !slices.Contains(regions, spec.Region) {
		return fmt.Sprintf("spec.region %q is not in the cloud config, which has %s", spec.Region, strings.Join(regions, ", "))
	}
	what := "template"
	if spec.TemplateName != "" {
		what += fmt.Sprintf(" named %q", spec.TemplateName)
	}
	if len(spec.Tags) > 0 {
		what += fmt.Sprintf(" with tags %s", strings.Join(spec.Tags, ", "))
	}
	return fmt.Sprintf("no host of %s has a %s that the API token may see: it needs VM.Audit on the template; on the host, look with: qm list, and make one with: qm template <vmid>", where, what)
}

// words tell which of several Templates is used.
func (d Double) words() string {
	return fmt.Sprintf("%s: several templates match; the newest, %d, is used, not %v", d.zone, d.chosen, d.others)
}

func chosen(doubles []Double) string {
	texts := make([]string, 0, len(doubles))
	for _, d := range doubles {
		texts = append(texts, d.words())
	}
	return strings.Join(texts, "; ")
}

func ambiguous(template *v1alpha1.ProxmoxUnmanagedTemplate, d Double) events.Event {
	return events.Event{
		InvolvedObject: template,
		Type:           corev1.EventTypeWarning,
		Reason:         "MultipleTemplatesMatch",
		Message:        d.words(),
		DedupeValues:   []string{string(template.UID), d.zone, strconv.Itoa(d.chosen)},
	}
}
