// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	podexplain "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/pod/explain"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Change is what is planned.
type Change struct {
	// Objects to apply, with their namespace and the defaults of the API server: the pods of
	// workloads are added; NodePools, NodeClasses and templates replace those of the same name.
	Objects []client.Object
	// LostHosts are powered off.
	LostHosts []observed.HostName
	// HostSettings replace those of the controller; nil for no change.
	HostSettings *declared.Settings
}

// Plan is the result of a Change.
type Plan struct {
	// Create are the VMs that Karpenter would create.
	Create []VM `json:"create"`
	// Delete are the VMs that would be lost or replaced.
	Delete []VM `json:"delete"`
	// Unschedulable are the pods that no Node fits.
	Unschedulable []UnschedulablePod `json:"unschedulable"`
	// PriceBefore and PriceAfter are the prices of all VMs per hour.
	PriceBefore float64 `json:"pricePerHourBefore"`
	PriceAfter  float64 `json:"pricePerHourAfter"`
	// Notes are the limits of the plan.
	Notes []string `json:"notes,omitempty"`
}

// UnschedulablePod is a pod that no Node fits.
type UnschedulablePod struct {
	Pod    string `json:"pod"`
	Reason string `json:"reason"`
}

// planner computes a Plan.
type planner struct {
	*simulation
	change Change
	plan   *Plan
	// affected are the classes that the change contains, or whose template it contains.
	affected map[string]bool
	// known are the UIDs of the NodeClaims before the change.
	known map[types.UID]bool
}

// Plan predicts what Karpenter would do after a Change. It fails if the change is invalid.
func (s *State) Plan(ctx context.Context, change Change) (*Plan, error) {
	settings, core, err := s.Controller.SettingsWithoutClusters()
	if err != nil {
		return nil, err
	}
	before, err := newSimulation(ctx, settings, core, s)
	if err != nil {
		return nil, err
	}
	if err := before.addObjects(); err != nil {
		return nil, err
	}
	after, err := s.with(change)
	if err != nil {
		return nil, err
	}
	if change.HostSettings != nil {
		settings.Hosts = *change.HostSettings
	}
	sim, notes, err := simulateChange(ctx, settings, core, after)
	if err != nil {
		return nil, err
	}
	p := &planner{simulation: sim, change: change, plan: &Plan{Create: []VM{}, Delete: []VM{}, Unschedulable: []UnschedulablePod{}, Notes: notes}, affected: map[string]bool{}, known: map[types.UID]bool{}}
	existing, err := before.listVMs()
	if err != nil {
		return nil, err
	}
	for _, vm := range existing {
		p.known[vm.claim.UID] = true
		p.plan.PriceBefore += vm.PricePerHour
	}
	return p.plan, p.run()
}

// run applies the change and collects the Plan.
func (p *planner) run() error {
	p.noteUnplanned()
	if err := p.checkClasses(); err != nil {
		return err
	}
	if err := p.addObjects(); err != nil {
		return err
	}
	if err := p.loseHosts(); err != nil {
		return err
	}
	if err := p.scaleStatic(); err != nil {
		return err
	}
	results, err := p.settle()
	if err != nil {
		return err
	}
	if results, err = p.replaceDrifted(results); err != nil {
		return err
	}
	return p.collect(results)
}

// noteUnplanned adds a note for each object whose effect is not planned.
func (p *planner) noteUnplanned() {
	for _, object := range p.change.Objects {
		switch object.(type) {
		case *batchv1.CronJob, *corev1.ReplicationController:
			p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("the pods of %s %s are not planned: pass a Deployment, StatefulSet, ReplicaSet, Job or pod",
				object.GetObjectKind().GroupVersionKind().Kind, client.ObjectKeyFromObject(object)))
		case *v1alpha1.ProxmoxTemplate:
			p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("the change of ProxmoxTemplate %s is not planned: VMs are planned with the templates that exist now", object.GetName()))
		}
	}
}

// loseHosts evicts the Nodes on lost Hosts.
func (p *planner) loseHosts() error {
	lost := map[observed.HostName]bool{}
	for _, host := range p.change.LostHosts {
		lost[host] = true
	}
	vms, err := p.listVMs()
	if err != nil {
		return err
	}
	for _, vm := range vms {
		if !lost[observed.HostName{Region: vm.Region, Host: vm.Host}] {
			continue
		}
		vm.Reason = fmt.Sprintf("host %s/%s is lost", vm.Region, vm.Host)
		p.plan.Delete = append(p.plan.Delete, vm)
		if err := p.evict(vm.claim.Status.NodeName, vm.claim); err != nil {
			return err
		}
		p.vms.Planner.Release(string(vm.claim.UID))
	}
	return p.evictUnmanaged(lost)
}

// evictUnmanaged evicts the Nodes on lost Hosts that Karpenter did not create.
func (p *planner) evictUnmanaged(lost map[observed.HostName]bool) error {
	nodes := &corev1.NodeList{}
	if err := p.kube.List(p.ctx, nodes); err != nil {
		return err
	}
	for _, node := range nodes.Items {
		id, err := v1alpha1.ParseProviderID(node.Spec.ProviderID)
		if err != nil {
			continue
		}
		guest, ok := p.inventory.View().Guest(id.Region, id.VMID)
		if !ok || !lost[observed.HostName{Region: id.Region, Host: guest.Host}] {
			continue
		}
		p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("node %s is on a lost host and has no NodeClaim; its pods are planned, the node is not replaced", node.Name))
		if err := p.evict(node.Name, nil); err != nil {
			return err
		}
	}
	return nil
}

// collect completes the Plan.
func (p *planner) collect(results scheduling.Results) error {
	vms, err := p.listVMs()
	if err != nil {
		return err
	}
	for _, vm := range vms {
		p.plan.PriceAfter += vm.PricePerHour
		if p.known[vm.claim.UID] {
			continue
		}
		if vm.Pods, err = p.podsOn(vm.claim.Status.NodeName); err != nil {
			return err
		}
		slices.Sort(vm.Pods)
		vm.NodeClaim = "" // Karpenter chooses the name
		p.plan.Create = append(p.plan.Create, vm)
	}
	unscheduled := maps.Clone(results.PodErrors)
	if unscheduled == nil {
		unscheduled = map[*corev1.Pod]error{}
	}
	for _, refused := range results.NewNodeClaims {
		for _, pod := range refused.Pods {
			unscheduled[pod] = errors.New("no NodeClaim could be launched for it")
		}
	}
	for pod, err := range unscheduled {
		p.addUnschedulable(pod, p.reason(pod, err))
	}
	if err := p.collectRejected(); err != nil {
		return err
	}
	slices.SortFunc(p.plan.Create, func(a, b VM) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Host, b.Host), cmp.Compare(a.InstanceType, b.InstanceType), slices.Compare(a.Pods, b.Pods))
	})
	slices.SortFunc(p.plan.Unschedulable, func(a, b UnschedulablePod) int { return cmp.Compare(a.Pod, b.Pod) })
	return nil
}

func (p *planner) addUnschedulable(pod *corev1.Pod, reason string) {
	p.plan.Unschedulable = append(p.plan.Unschedulable, UnschedulablePod{client.ObjectKeyFromObject(pod).String(), reason})
}

// collectRejected adds the pods that core does not schedule and that no existing Node fits, and
// those whose PersistentVolumeClaims are invalid.
func (p *planner) collectRejected() error {
	pods, err := nodeutils.GetProvisionablePods(p.ctx, p.kube)
	if err != nil {
		return err
	}
	var rejected []*corev1.Pod
	reasons := map[*corev1.Pod]string{}
	for _, pod := range pods {
		err := p.scheduler.Validate(p.ctx, pod)
		if err == nil {
			continue
		}
		reasons[pod] = "Karpenter ignores the pod: " + err.Error()
		if scheduling.NewVolumeTopology(p.kube).ValidatePersistentVolumeClaims(p.ctx, pod) != nil {
			p.addUnschedulable(pod, reasons[pod])
			continue
		}
		if errors.Is(err, provisioning.KarpenterManagedLabelDoesNotExistError) {
			reasons[pod] = "no existing node fits, and the pod avoids nodes of Karpenter"
		}
		requireHostnames(pod)
		rejected = append(rejected, pod)
	}
	results, err := p.scheduleOn(p.cluster.DeepCopyNodes().Active(), rejected)
	for pod := range results.PodErrors {
		p.addUnschedulable(pod, reasons[pod])
	}
	return err
}

// requireHostnames adds the matchFields of a pod, which core's scheduler ignores, to its
// matchExpressions. The only field is the name of the Node, which is also its hostname.
func requireHostnames(pod *corev1.Pod) {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return
	}
	terms := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		for _, field := range terms[i].MatchFields {
			field.Key = corev1.LabelHostname
			terms[i].MatchExpressions = append(terms[i].MatchExpressions, field)
		}
	}
}

// reason returns why no Node fits a pod: what the controller reports in its event, or
// core's reason if the controller has none.
func (p *planner) reason(pod *corev1.Pod, cause error) string {
	reasons, _, err := podexplain.NewController(p.kube, p.vms.Planner, p.recorder, p.cluster).Reasons(p.ctx, pod)
	if err != nil {
		return err.Error()
	}
	return cmp.Or(strings.Join(reasons, "; "), fmt.Sprint(cause))
}
