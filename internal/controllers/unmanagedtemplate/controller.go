// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package unmanagedtemplate resolves each ProxmoxUnmanagedTemplate to the Templates on the Hosts, and
// keeps a deleted one until no NodeClaim uses it.
package unmanagedtemplate

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
	"k8s.io/apimachinery/pkg/api/resource"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// Controller reconciles ProxmoxUnmanagedTemplates.
type Controller struct {
	lifecycle.Reconciler[*v1alpha1.ProxmoxUnmanagedTemplate]
	inventory *inventory.Inventory
}

// NewController returns a Controller.
func NewController(kube client.Client, inv *inventory.Inventory, recorder events.Recorder) *Controller {
	c := &Controller{inventory: inv}
	c.Reconciler = lifecycle.Reconciler[*v1alpha1.ProxmoxUnmanagedTemplate]{
		Kube: kube, Recorder: recorder, Kind: "template", SetStatus: c.setStatus,
		Users: build.Users[*v1alpha1.ProxmoxUnmanagedTemplate](kube, v1alpha1.ProxmoxUnmanagedTemplateKind),
	}
	return c
}

// Register adds the Controller to the manager.
func (c *Controller) Register(ctx context.Context, m manager.Manager) error {
	return ctrl.NewControllerManagedBy(m).
		Named("unmanagedtemplate.lifecycle.proxmox").
		For(&v1alpha1.ProxmoxUnmanagedTemplate{}).
		Watches(&karpv1.NodeClaim{}, build.UserDeleted(c.Kube, v1alpha1.ProxmoxUnmanagedTemplateKind), builder.WithPredicates(watch.Deletions())).
		WatchesRawSource(watch.Inventory(ctx, c.inventory, m.GetClient(), &v1alpha1.ProxmoxUnmanagedTemplateList{})).
		Complete(reconcile.AsReconciler(m.GetClient(), c))
}

func (c *Controller) setStatus(_ context.Context, template *v1alpha1.ProxmoxUnmanagedTemplate) (time.Duration, error) {
	for _, ambiguity := range Resolve(c.inventory, template) {
		c.Recorder.Publish(event.Warning(template, v1alpha1.EventMultipleTemplatesMatch, ambiguity.message(), ambiguity.zone, strconv.Itoa(ambiguity.selected)))
	}
	return 0, nil
}

// Resolve sets the status of a ProxmoxUnmanagedTemplate and returns the Hosts with
// several matching Templates.
func Resolve(inv *inventory.Inventory, template *v1alpha1.ProxmoxUnmanagedTemplate) []Ambiguity {
	view := inv.View()
	found, ambiguities := findTemplates(view, template.Spec, template.Status.Zones)
	found = append(found, zonesOfUnpolledClusters(view, inv.Regions(), template.Status.Zones)...)
	template.Status.Zones = found
	template.Status.Resources = corev1.ResourceList{v1alpha1.ResourceZones: *resource.NewQuantity(int64(len(found)), resource.DecimalSI)}
	conditions := template.StatusConditions()
	switch {
	case len(found) > 0:
		conditions.SetTrueWithReason(v1alpha1.ConditionTemplateReady, v1alpha1.ConditionTemplateReady, joinMessages(ambiguities))
	case !allClustersPolled(view, inv.Regions(), template.Spec.Region):
		conditions.SetUnknownWithReason(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonClustersNotPolled, "a Proxmox cluster has not been polled yet")
	default:
		conditions.SetFalse(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplatesNotFound, notFoundMessage(view, template.Spec, inv.Regions()))
	}
	lifecycle.SetCause(template)
	return ambiguities
}

// zonesOfUnpolledClusters returns the previous zones in Clusters that were not polled
// since the start: an unreachable Cluster keeps its Templates.
func zonesOfUnpolledClusters(view inventory.View, regions, previous []string) []string {
	var out []string
	for _, entry := range previous {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || !slices.Contains(regions, zone.Region) {
			continue
		}
		if _, polled := view.Snapshots[zone.Region]; !polled {
			out = append(out, entry)
		}
	}
	return out
}

// Ambiguity is a Host with several matching Templates.
type Ambiguity struct {
	zone     string
	selected int
	others   []int
}

// findTemplates returns for each Host the Template that its VMs are cloned from, as
// <region>/<host>/<vmid>. It is on the Host or on a storage that the Host shares. If
// several match, it is the one with the latest creation time, then the one on the Host,
// then the one with the highest VMID. One that a ProxmoxTemplate built is used only if no
// other one matches, or such a one is in the previous zones: a ProxmoxTemplate of the same name
// must not replace Nodes.
func findTemplates(view inventory.View, spec v1alpha1.ProxmoxUnmanagedTemplateSpec, previous []string) (zones []string, ambiguities []Ambiguity) {
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		if spec.Region != "" && spec.Region != region {
			continue
		}
		snapshot := view.Snapshots[region]
		var matching []observed.Guest
		for _, guest := range snapshot.Guests {
			if matches(guest, spec) {
				matching = append(matching, guest)
			}
		}
		for _, host := range hostsOf(snapshot, matching) {
			candidates := slices.DeleteFunc(slices.Clone(matching), func(guest observed.Guest) bool {
				return !template.CanClone(snapshot, guest.Host, *guest.Config, host)
			})
			if len(candidates) == 0 {
				continue
			}
			isManagedInUse := func(guest observed.Guest) bool {
				return !isUnmanaged(guest) && slices.Contains(previous, v1alpha1.TemplateZone{Region: region, Host: host, VMID: guest.VMID}.String())
			}
			if slices.ContainsFunc(candidates, isUnmanaged) && !slices.ContainsFunc(candidates, isManagedInUse) {
				candidates = slices.DeleteFunc(candidates, func(guest observed.Guest) bool { return !isUnmanaged(guest) })
			}
			slices.SortFunc(candidates, func(a, b observed.Guest) int { return comparePreference(host, a, b) })
			zone := v1alpha1.TemplateZone{Region: region, Host: host, VMID: candidates[0].VMID}
			zones = append(zones, zone.String())
			if len(candidates) > 1 {
				a := Ambiguity{zone: zone.Zone(), selected: zone.VMID}
				for _, other := range candidates[1:] {
					a.others = append(a.others, other.VMID)
				}
				ambiguities = append(ambiguities, a)
			}
		}
	}
	return zones, ambiguities
}

// hostsOf returns the Hosts of the Cluster and those of the guests.
func hostsOf(snapshot *observed.Snapshot, guests []observed.Guest) []string {
	hosts := slices.Collect(maps.Keys(snapshot.Hosts))
	for _, guest := range guests {
		hosts = append(hosts, guest.Host)
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

func matches(guest observed.Guest, spec v1alpha1.ProxmoxUnmanagedTemplateSpec) bool {
	if !guest.Template || guest.Config == nil || guest.IsSlot() {
		return false // a slot template is for one VM
	}
	if spec.VMID != 0 && int(spec.VMID) != guest.VMID {
		return false
	}
	if spec.TemplateName != "" && spec.TemplateName != guest.Name {
		return false
	}
	for _, tag := range spec.Tags {
		if !slices.ContainsFunc(guest.Tags, func(guestTag string) bool { return strings.EqualFold(guestTag, tag) }) {
			return false
		}
	}
	return true
}

// isUnmanaged reports whether no ProxmoxTemplate, of this or another Kubernetes cluster, built
// the Template. A copy of one that was built is unmanaged.
func isUnmanaged(guest observed.Guest) bool {
	mark, ok := ownership.Read(guest.Config.Description())
	return !ok || mark.TemplateUID == "" || mark.VMID != guest.VMID
}

func comparePreference(host string, a, b observed.Guest) int {
	isLocal := func(guest observed.Guest) int {
		if guest.Host == host {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(template.CreationTime(*b.Config), template.CreationTime(*a.Config)), isLocal(b)-isLocal(a), cmp.Compare(b.VMID, a.VMID))
}

func allClustersPolled(view inventory.View, regions []string, only string) bool {
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

func notFoundMessage(view inventory.View, spec v1alpha1.ProxmoxUnmanagedTemplateSpec, regions []string) string {
	where := "region " + spec.Region
	if spec.Region == "" {
		where = "regions " + strings.Join(regions, ", ")
	} else if !slices.Contains(regions, spec.Region) {
		return fmt.Sprintf("spec.region %q is not in the cloud config, which has %s", spec.Region, strings.Join(regions, ", "))
	}
	if problem := vmidProblem(view, spec); problem != "" {
		return problem
	}
	what := "template"
	if spec.VMID != 0 {
		what += fmt.Sprintf(" with spec.vmid %d", spec.VMID)
	}
	if spec.TemplateName != "" {
		what += fmt.Sprintf(" named %q", spec.TemplateName)
	}
	if len(spec.Tags) > 0 {
		what += fmt.Sprintf(" with tags %s", strings.Join(spec.Tags, ", "))
	}
	return fmt.Sprintf("no host of %s has a %s that is visible to the API token, which needs VM.Audit on the template; on the host, list templates with: qm list, and create one with: qm template <vmid>", where, what)
}

// message describes which of several Templates is used.
func (a Ambiguity) message() string {
	return fmt.Sprintf("%s: several templates match; the newest, %d, is used, not %v", a.zone, a.selected, a.others)
}

func joinMessages(ambiguities []Ambiguity) string {
	texts := make([]string, 0, len(ambiguities))
	for _, a := range ambiguities {
		texts = append(texts, a.message())
	}
	return strings.Join(texts, "; ")
}
