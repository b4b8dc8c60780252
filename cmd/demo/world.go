// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// World is what is true at one moment, on both sides.
type World struct {
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

// VM is a claim and what became of it.
type VM struct {
	Host string
	VMID int
	// Name of the claim and of its Node.
	Name, UID string
	Type      string
	Phase     Phase
	// Exists on Proxmox.
	Exists bool
	// Why Karpenter removes it.
	Why string
	// Since the claim until its Node was first Ready; zero before.
	ReadyAfter time.Duration
}

// Phase is how far a VM is.
type Phase string

// Phases of a VM, in the order of its life.
const (
	Planned  Phase = "planned"
	Cloning  Phase = "cloning"
	Prepared Phase = "configured"
	Booting  Phase = "booting"
	Joined   Phase = "joined"
	Ready    Phase = "Ready"
	NotReady Phase = "NotReady"
	NoPower  Phase = "no power"
	Leaving  Phase = "leaving"
)

func (p Phase) style() style {
	switch p {
	case Ready:
		return green
	case NotReady, NoPower:
		return red
	case Leaving:
		return dim
	case Planned, Cloning, Prepared, Booting, Joined:
	}
	return yellow
}

// Pod of one of the demo's deployments.
type Pod struct {
	App, Name, Node, Host string
	Ready, Leaving        bool
}

// observer reads both sides.
type observer struct {
	kube client.Client
	api  *harness.API
	// foreign are the guests that were there before us.
	foreign map[int]bool
	// cpus of the hosts.
	cpus map[string]int
	// lastSeen keeps the guests of a host that does not answer.
	lastSeen map[int]harness.Guest
}

// look reads the world as it is now.
func (o *observer) look(ctx context.Context) (World, error) {
	up, err := o.api.Hosts(ctx)
	if err != nil {
		return World{}, fmt.Errorf("reading the hosts: %w", err)
	}
	guests, err := o.guests(ctx, up)
	if err != nil {
		return World{}, err
	}
	claims, nodes, pods := &karpv1.NodeClaimList{}, &corev1.NodeList{}, &corev1.PodList{}
	for _, list := range []client.ObjectList{claims, nodes} {
		if err := o.kube.List(ctx, list); err != nil {
			return World{}, fmt.Errorf("reading the cluster: %w", err)
		}
	}
	if err := o.kube.List(ctx, pods, client.InNamespace(namespace)); err != nil {
		return World{}, fmt.Errorf("reading the pods: %w", err)
	}
	w := World{}
	for name, isUp := range up {
		host := Host{Name: name, Up: isUp, CPUs: o.cpus[name]}
		for _, guest := range guests {
			if guest.Host == name && !guest.Template {
				host.UsedCPUs += cores(guest)
			}
		}
		w.Hosts = append(w.Hosts, host)
	}
	slices.SortFunc(w.Hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	w.VMs = vms(claims.Items, nodes.Items, guests, o.foreign, up)
	w.Pods = demoPods(pods.Items, w.VMs)
	return w, nil
}

// guests remembers those of a host that is away: they are still on its disks.
func (o *observer) guests(ctx context.Context, up map[string]bool) (map[int]harness.Guest, error) {
	list, err := o.api.Guests(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the guests: %w", err)
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

// vms joins claims, guests and Nodes.
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
		guest, exists := guests[vm.VMID]
		vm.Exists = exists
		vm.Phase = phase(claim, byName[claim.Name], guest, up[vm.Host])
		if condition := claim.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason); condition.IsTrue() {
			vm.Why = condition.Reason
		}
		out = append(out, vm)
	}
	for vmid, guest := range guests {
		if !foreign[vmid] && !claimed[vmid] {
			out = append(out, VM{VMID: vmid, Host: guest.Host, Name: guest.Name, Phase: Leaving, Exists: true})
		}
	}
	slices.SortFunc(out, func(a, b VM) int { return cmp.Or(cmp.Compare(a.Host, b.Host), a.VMID-b.VMID) })
	return out
}

func phase(claim *karpv1.NodeClaim, node *corev1.Node, guest harness.Guest, hostUp bool) Phase {
	lock, _ := guest.Config["lock"].(string)
	switch {
	case !claim.DeletionTimestamp.IsZero():
		return Leaving
	case !hostUp && guest.VMID != 0:
		return NoPower
	case guest.VMID == 0:
		return Planned
	case lock == "clone":
		return Cloning
	case guest.Status != "running" && claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "":
		return NoPower
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
			Leaving: !pod.DeletionTimestamp.IsZero(),
			Ready:   harness.PodReady(&pod),
		})
	}
	slices.SortFunc(out, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// of are the pods of one deployment that are to stay.
func (w World) of(app string) []Pod {
	return slices.DeleteFunc(slices.Clone(w.Pods), func(p Pod) bool { return p.App != app || p.Leaving })
}

// ready counts an app's pods that run.
func (w World) ready(app string) int {
	n := 0
	for _, pod := range w.of(app) {
		if pod.Ready {
			n++
		}
	}
	return n
}

// all tells whether every VM is in one of the phases.
func (w World) all(phases ...Phase) bool {
	return !slices.ContainsFunc(w.VMs, func(vm VM) bool { return !slices.Contains(phases, vm.Phase) })
}
