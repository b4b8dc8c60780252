// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// VM is a NodeClaim and its VM, or a VM whose NodeClaim no longer exists.
type VM struct {
	Region string `json:"region"`
	// Host is empty, and VMID zero, until Karpenter's decision is planned.
	Host string `json:"host,omitempty"`
	VMID int    `json:"vmid,omitempty"`
	// Claim is the name of the NodeClaim, and UID its UID; empty if it no longer exists.
	Claim string `json:"nodeClaim,omitempty"`
	UID   string `json:"nodeClaimUID,omitempty"`
	// Node is the name of the Node; empty before it joins.
	Node         string  `json:"node,omitempty"`
	NodePool     string  `json:"nodePool,omitempty"`
	Type         string  `json:"instanceType,omitempty"`
	CPUs         int     `json:"cpus"`
	MemoryBytes  int64   `json:"memoryBytes"`
	PricePerHour float64 `json:"pricePerHour"`
	Phase        Phase   `json:"phase"`
	// Reason is why the VM is deleted or waits; empty if neither.
	Reason string `json:"reason,omitempty"`
	// Created is when the NodeClaim was created; zero if it no longer exists.
	Created time.Time `json:"created,omitzero"`
	// Timeline is when the launch reached each step.
	Timeline []Step `json:"launch,omitempty"`
	Pods     []Pod  `json:"pods,omitempty"`

	// diskBytes by storage.
	diskBytes map[string]int64
}

// Step is a step of a launch.
type Step struct {
	Name string
	// After is the time since Karpenter's decision.
	After time.Duration
}

// MarshalJSON writes the time in seconds.
func (s Step) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]any{"name": s.Name, "afterSeconds": s.After.Seconds()})
}

// Phase is the phase of a VM.
type Phase string

// Phases of a VM in order.
const (
	Waiting    Phase = "waiting"
	Planned    Phase = "planned"
	Cloning    Phase = "cloning"
	Configured Phase = "configured"
	Booting    Phase = "booting"
	Joined     Phase = "joined"
	Ready      Phase = "Ready"
	NotReady   Phase = "NotReady"
	Stopped    Phase = "stopped"
	Deleting   Phase = "deleting"
	Orphaned   Phase = "orphaned"
)

// IsLaunching reports whether the Node is not ready for the first time yet.
func (p Phase) IsLaunching() bool {
	return slices.Contains([]Phase{Waiting, Planned, Cloning, Configured, Booting, Joined}, p)
}

// reportDelay is how long Proxmox may report the state of a VM before its start: the data
// is updated every ten seconds.
const reportDelay = 20 * time.Second

// Key identifies a VM in a Map, also before it has a VMID.
func (vm VM) Key() string { return fmt.Sprintf("%s/%d/%s", vm.Region, vm.VMID, vm.Claim) }

// ReadyAfter returns the time from Karpenter's decision to the initialized Node; false
// before.
func (vm VM) ReadyAfter() (time.Duration, bool) {
	i := slices.IndexFunc(vm.Timeline, func(s Step) bool { return s.Name == string(instance.PhaseInitialized) })
	if i < 0 {
		return 0, false
	}
	return vm.Timeline[i].After, true
}

func (vm VM) size(by Order) float64 {
	switch by {
	case ByCPUs:
		return float64(vm.CPUs)
	case ByMemory:
		return float64(vm.MemoryBytes)
	case ByPrice:
		return vm.PricePerHour
	case ByPods:
		return float64(len(vm.Pods))
	case ByName:
	}
	return 0
}

// newVMs returns the VMs of all claims of the provider, and VMs of the Kubernetes cluster
// without a claim.
func newVMs(in Input) []VM {
	nodes := map[string]*corev1.Node{}
	for i := range in.Objects.Nodes {
		nodes[in.Objects.Nodes[i].Spec.ProviderID] = &in.Objects.Nodes[i]
	}
	pods, launched := podsByNode(in.Objects.Pods), LaunchTimes(in.Objects.Events)
	vms := []VM{}
	claimed := map[v1alpha1.ProviderID]bool{}
	for i := range in.Objects.Claims {
		claim := &in.Objects.Claims[i]
		if ref := claim.Spec.NodeClassRef; ref == nil || ref.Group != v1alpha1.Group {
			continue
		}
		vm := newVM(in, claim, nodes[claim.Status.ProviderID], launched[claim.UID])
		vm.Pods = pods[vm.Node]
		claimed[v1alpha1.ProviderID{Region: vm.Region, VMID: vm.VMID}] = true
		vms = append(vms, vm)
	}
	vms = append(vms, orphans(in, claimed)...)
	slices.SortFunc(vms, func(a, b VM) int {
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Host, b.Host), a.VMID-b.VMID, cmp.Compare(a.Claim, b.Claim))
	})
	return vms
}

// orphans returns the VMs with our ownership mark and without a claim. Deletions in progress
// are among them until the next poll.
func orphans(in Input, claimed map[v1alpha1.ProviderID]bool) []VM {
	var vms []VM
	for region, snapshot := range in.View.Snapshots {
		for _, guest := range snapshot.Guests {
			if guest.Config == nil || guest.Template || claimed[v1alpha1.ProviderID{Region: region, VMID: guest.VMID}] {
				continue
			}
			if id, ok := instance.ReadIdentity(region, *guest.Config); ok && id.KubeCluster == in.KubeCluster && id.VMID == guest.VMID {
				vms = append(vms, VM{
					Region: region, Host: guest.Host, VMID: guest.VMID, Phase: Orphaned, Reason: "the NodeClaim no longer exists",
					CPUs: guest.Allocated.CPUs, MemoryBytes: guest.Allocated.MemoryBytes,
				})
			}
		}
	}
	return vms
}

func newVM(in Input, claim *karpv1.NodeClaim, node *corev1.Node, launched time.Time) VM {
	vm := VM{
		Claim: claim.Name, UID: string(claim.UID), NodePool: claim.Labels[karpv1.NodePoolLabelKey], Created: claim.CreationTimestamp.Time,
		Type: claim.Labels[corev1.LabelInstanceTypeStable], Host: claim.Labels[corev1.LabelTopologyZone], Region: claim.Labels[corev1.LabelTopologyRegion],
	}
	if node != nil && claim.Status.ProviderID != "" {
		vm.Node = node.Name
	} else {
		node = nil
	}
	intent, planned := instance.IntentIn(in.View, in.KubeCluster, claim)
	if planned {
		vm.Region, vm.VMID = intent.Region, intent.VMID
		vm.Type, vm.CPUs, vm.MemoryBytes = intent.InstanceType, intent.Cores, int64(intent.MemoryMiB)<<20
		vm.diskBytes = map[string]int64{intent.Storage: intent.DiskBytes}
		for _, disk := range intent.Disks {
			vm.diskBytes[disk.Storage] += disk.GiB() << 30
		}
	}
	guest, listed := in.View.Guest(vm.Region, vm.VMID)
	if listed {
		vm.Host = guest.Host // it may have been migrated
	}
	host, _ := in.View.Host(vm.Region, vm.Host)
	size := instancetype.Type{CPUs: vm.CPUs, MemoryBytes: vm.MemoryBytes, Spot: intent.CapacityType == karpv1.CapacityTypeSpot}
	vm.PricePerHour = price(in.Pricing, host, size, len(intent.Devices))
	vm.Phase, vm.Reason = phase(phaseInput{claim, node, guest, listed, host, intent.Parked, launched, in.Now})
	vm.Timeline = timeline(claim, node, launched, in.Now)
	return vm
}

// price returns the price of the offering that a VM was created for.
func price(pricing instancetype.Pricing, host inventory.HostState, size instancetype.Type, devices int) float64 {
	if size.CPUs == 0 || host.Name == "" {
		return 0
	}
	return pricing.Price(size, devices) * host.PriceFactor
}

type phaseInput struct {
	claim  *karpv1.NodeClaim
	node   *corev1.Node // nil before it joins
	guest  observed.Guest
	listed bool
	host   inventory.HostState
	parked bool
	// launched is when the launch ended; zero if no event shows it.
	launched time.Time
	now      time.Time
}

// phase returns the phase of a VM, and why it is deleted or does not run.
func phase(in phaseInput) (Phase, string) {
	switch {
	case !in.claim.DeletionTimestamp.IsZero():
		return Deleting, deletionReason(in.claim)
	case in.host.Has(inventory.Offline) && in.listed:
		return Stopped, "the host is offline"
	case !in.isLaunched():
		return launchPhase(in)
	case in.listed && in.guest.Status == "stopped" && in.now.Sub(in.launched) > reportDelay:
		return Stopped, ""
	}
	return nodePhase(in.claim, in.node), disruptionReason(in.claim)
}

// launchPhase returns the phase of a VM that was not seen running yet.
func launchPhase(in phaseInput) (Phase, string) {
	switch {
	case in.parked:
		return Waiting, "insufficient capacity on the host"
	case !in.listed:
		return Planned, ""
	case in.guest.Config != nil && vmconfig.IsConfigured(*in.guest.Config, in.guest.VMID):
		return Configured, ""
	}
	return Cloning, ""
}

// isLaunched reports whether the VM ran once: an event shows it, or its Node, or Proxmox.
func (in phaseInput) isLaunched() bool {
	_, joined := instance.JoinedAt(in.claim)
	return joined || !in.launched.IsZero() || instance.LaunchedByOther(in.claim) || in.listed && in.guest.Status == "running"
}

func nodePhase(claim *karpv1.NodeClaim, node *corev1.Node) Phase {
	switch conditions := claim.StatusConditions(); {
	case node == nil:
		return Booting
	case !conditions.Get(karpv1.ConditionTypeRegistered).IsTrue():
		return Joined
	case nodeutils.GetCondition(node, corev1.NodeReady).Status == corev1.ConditionTrue:
		return Ready
	case conditions.Get(karpv1.ConditionTypeInitialized).IsTrue():
		return NotReady
	}
	return Joined
}

func disruptionReason(claim *karpv1.NodeClaim) string {
	if condition := claim.StatusConditions().Get(karpv1.ConditionTypeDisruptionReason); condition.IsTrue() {
		return condition.Reason
	}
	return ""
}

// deletionReason returns why a claim is deleted and the current step.
func deletionReason(claim *karpv1.NodeClaim) string {
	step := "draining"
	switch conditions := claim.StatusConditions(); {
	case conditions.Get(karpv1.ConditionTypeInstanceTerminating).IsTrue():
		step = "deleting the VM"
	case conditions.Get(karpv1.ConditionTypeDrained).IsTrue():
		step = "waiting for volumes"
	}
	if reason := disruptionReason(claim); reason != "" {
		return reason + ", " + step
	}
	return step
}

// LaunchTimes returns when the launches of VMs ended by the UID of their claim, as events show it.
// Kubernetes deletes events after an hour by default.
func LaunchTimes(all []corev1.Event) map[types.UID]time.Time {
	out := map[types.UID]time.Time{}
	for _, event := range all {
		if event.Reason == v1alpha1.EventVMLaunched {
			out[event.InvolvedObject.UID] = EventTime(event)
		}
	}
	return out
}

// Progress returns the steps of a launch that have ended, as far as objects show them: the steps of
// Proxmox before the start of the VM are only in the message of the event.
func Progress(claim *karpv1.NodeClaim, node *corev1.Node, launched, now time.Time) instance.Progress {
	progress := instance.NewProgress()
	if !launched.IsZero() {
		progress.Reach(instance.PhaseStarted, launched.Sub(claim.CreationTimestamp.Time))
	}
	progress.Observe(claim, claim.CreationTimestamp.Time, instance.Observed{Node: node}, now)
	return progress
}

// timeline returns the steps of a launch that have ended, in their order.
func timeline(claim *karpv1.NodeClaim, node *corev1.Node, launched, now time.Time) []Step {
	progress := Progress(claim, node, launched, now)
	var steps []Step
	for _, step := range progress.Steps() {
		steps = append(steps, Step{string(step.Phase), step.At})
	}
	return steps
}

func nodePools(in Input, vms []VM) []NodePool {
	sums := map[string]*NodePool{}
	for _, pool := range in.Objects.NodePools {
		if ref := pool.Spec.Template.Spec.NodeClassRef; ref != nil && ref.Group == v1alpha1.Group {
			sums[pool.Name] = &NodePool{Name: pool.Name}
		}
	}
	for _, vm := range vms {
		if vm.NodePool == "" {
			continue
		}
		if sums[vm.NodePool] == nil {
			sums[vm.NodePool] = &NodePool{Name: vm.NodePool}
		}
		sum := sums[vm.NodePool]
		sum.VMs, sum.Pods, sum.CPUs = sum.VMs+1, sum.Pods+len(vm.Pods), sum.CPUs+vm.CPUs
		sum.MemoryBytes, sum.PricePerHour = sum.MemoryBytes+vm.MemoryBytes, sum.PricePerHour+vm.PricePerHour
	}
	out := []NodePool{}
	energy := in.View.NodePoolEnergy()
	for name, sum := range sums {
		sum.Energy = energy[name]
		out = append(out, *sum)
	}
	slices.SortFunc(out, func(a, b NodePool) int { return cmp.Compare(a.Name, b.Name) })
	return out
}
