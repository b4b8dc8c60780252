// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// State is the state of Kubernetes and Proxmox at one moment.
type State struct {
	Hosts []Host
	VMs   []VM
	Pods  []Pod
}

// Host is a Proxmox host.
type Host struct {
	Name           string
	Up             bool
	CPUs, UsedCPUs int
}

// VM is a claim and its VM.
type VM struct {
	Host string
	VMID int
	// Name is the name of the claim and its Node.
	Name, UID string
	Type      string
	Phase     Phase
	// Why is the reason for its disruption.
	Why string
	// ReadyAfter is the time from the claim to its first ready Node; zero before.
	ReadyAfter time.Duration
}

// Phase is the phase of a VM.
type Phase string

// Phases of a VM in order.
const (
	Planned  Phase = "planned"
	Cloning  Phase = "cloning"
	Prepared Phase = "configured"
	Booting  Phase = "booting"
	Joined   Phase = "joined"
	Ready    Phase = "Ready"
	NotReady Phase = "NotReady"
	Stopped  Phase = "stopped"
	Deleting Phase = "deleting"
)

func (p Phase) style() style {
	switch p {
	case Ready:
		return green
	case NotReady, Stopped:
		return red
	case Deleting:
		return dim
	case Planned, Cloning, Prepared, Booting, Joined:
	}
	return yellow
}

// Pod is a pod of one of the demo's Deployments.
type Pod struct {
	App, Name, Node, Host string
	Ready, Deleting       bool
	// Why is the reason why a pod is not ready, as far as Kubernetes reports one.
	Why string
}

// observer reads the state of Kubernetes and Proxmox.
type observer struct {
	kube client.Client
	api  *harness.API
	// foreign are the guests that existed before the demo.
	foreign map[int]bool
	// cpus is the number of CPUs of each host.
	cpus map[string]int
	// lastSeen holds the guests of hosts that are offline.
	lastSeen map[int]harness.Guest
}

// observe reads the current state.
func (o *observer) observe(ctx context.Context) (State, error) {
	up, err := o.api.Hosts(ctx)
	if err != nil {
		return State{}, fmt.Errorf("listing hosts: %w", err)
	}
	guests, err := o.guests(ctx, up)
	if err != nil {
		return State{}, err
	}
	claims, nodes, pods := &karpv1.NodeClaimList{}, &corev1.NodeList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{claims, nodes} {
		if err := o.kube.List(ctx, list); err != nil {
			return State{}, fmt.Errorf("listing objects: %w", err)
		}
	}
	if err := o.kube.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return State{}, fmt.Errorf("listing pods: %w", err)
	}
	s := State{}
	for name, isUp := range up {
		host := Host{Name: name, Up: isUp, CPUs: o.cpus[name]}
		for _, guest := range guests {
			if guest.Host == name && !guest.Template {
				host.UsedCPUs += cores(guest)
			}
		}
		s.Hosts = append(s.Hosts, host)
	}
	slices.SortFunc(s.Hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	s.VMs = vms(claims.Items, nodes.Items, guests, o.foreign, up)
	s.Pods = demoPods(pods.Items, s.VMs)
	return s, nil
}

// guests returns all guests, including the last known ones of offline hosts.
func (o *observer) guests(ctx context.Context, up map[string]bool) (map[int]harness.Guest, error) {
	list, err := o.api.Guests(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing guests: %w", err)
	}
	seen := map[int]harness.Guest{}
	for _, guest := range list {
		seen[guest.VMID] = guest
	}
	for vmid, guest := range o.lastSeen {
		if _, ok := seen[vmid]; !ok && !up[guest.Host] {
			guest.Status = "stopped"
			seen[vmid] = guest
		}
	}
	o.lastSeen = seen
	return seen, nil
}

func cores(guest harness.Guest) int {
	n := 1
	for _, key := range []string{"cores", "sockets"} {
		if f, ok := guest.Config[key].(float64); ok {
			n *= int(f)
		}
	}
	return n
}

// vms combines claims, guests and Nodes.
func vms(claims []karpv1.NodeClaim, nodes []corev1.Node, guests map[int]harness.Guest, foreign map[int]bool, up map[string]bool) []VM {
	byName := map[string]*corev1.Node{}
	for i := range nodes {
		byName[nodes[i].Name] = &nodes[i]
	}
	var out []VM
	claimed := map[int]bool{}
	for i := range claims {
		claim := &claims[i]
		vm := VM{Name: claim.Name, UID: string(claim.UID), Type: claim.Labels[corev1.LabelInstanceTypeStable], Host: claim.Labels[corev1.LabelTopologyZone]}
		if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil {
			vm.VMID = id.VMID
			claimed[id.VMID] = true
		}
		vm.Phase = phase(claim, byName[claim.Name], guests[vm.VMID], up[vm.Host])
		if condition := claim.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason); condition.IsTrue() {
			vm.Why = condition.Reason
		}
		out = append(out, vm)
	}
	for vmid, guest := range guests {
		if !foreign[vmid] && !claimed[vmid] {
			out = append(out, VM{VMID: vmid, Host: guest.Host, Name: guest.Name, Phase: Deleting})
		}
	}
	slices.SortFunc(out, func(a, b VM) int { return cmp.Or(cmp.Compare(a.Host, b.Host), a.VMID-b.VMID) })
	return out
}

func phase(claim *karpv1.NodeClaim, node *corev1.Node, guest harness.Guest, hostUp bool) Phase {
	lock, _ := guest.Config["lock"].(string)
	switch {
	case !claim.DeletionTimestamp.IsZero():
		return Deleting
	case !hostUp && guest.VMID != 0:
		return Stopped
	case guest.VMID == 0:
		return Planned
	case lock == "clone":
		return Cloning
	case guest.Status != "running" && claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "":
		return Stopped
	case guest.Status != "running":
		return Prepared
	case node == nil:
		return Booting
	case !claim.StatusConditions().Get(karpv1.ConditionTypeRegistered).IsTrue():
		return Joined
	case harness.NodeReady(node):
		return Ready
	case claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue():
		return NotReady
	}
	return Joined
}

func demoPods(pods []corev1.Pod, vms []VM) []Pod {
	hosts := map[string]string{}
	for _, vm := range vms {
		hosts[vm.Name] = vm.Host
	}
	var out []Pod
	for _, pod := range pods {
		out = append(out, Pod{
			App: pod.Labels["app"], Name: pod.Name, Node: pod.Spec.NodeName, Host: hosts[pod.Spec.NodeName],
			Deleting: !pod.DeletionTimestamp.IsZero(),
			Ready:    harness.PodReady(&pod),
			Why:      notReadyReason(&pod),
		})
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// of returns the pods of a Deployment that are not being deleted.
func (s State) of(app string) []Pod {
	return slices.DeleteFunc(slices.Clone(s.Pods), func(p Pod) bool { return p.App != app || p.Deleting })
}

// ready returns the number of an app's ready pods.
func (s State) ready(app string) int {
	n := 0
	for _, pod := range s.of(app) {
		if pod.Ready {
			n++
		}
	}
	return n
}

// all reports whether every VM is in one of the phases.
func (s State) all(phases ...Phase) bool {
	return !slices.ContainsFunc(s.VMs, func(vm VM) bool { return !slices.Contains(phases, vm.Phase) })
}

// notReadyReason returns why a pod does not run, as far as Kubernetes reports it: after a reset of the Node, containers
// wait without a reason.
func notReadyReason(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil && waiting.Reason != "" {
			return waiting.Reason
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Reason != "" {
			return condition.Reason
		}
	}
	return string(pod.Status.Phase)
}

// describe returns the phases of all VMs and which pods are not ready.
func (s State) describe() string {
	var out []string
	for _, vm := range s.VMs {
		out = append(out, fmt.Sprintf("VM %d is %s", vm.VMID, vm.Phase))
	}
	for _, pod := range s.Pods {
		switch {
		case pod.Deleting:
			out = append(out, "pod "+pod.Name+" is being deleted")
		case !pod.Ready:
			out = append(out, fmt.Sprintf("pod %s is not ready (%s)", pod.Name, pod.Why))
		}
	}
	if len(out) == 0 {
		return "there are no VMs and no pods"
	}
	return strings.Join(out, ", ")
}
