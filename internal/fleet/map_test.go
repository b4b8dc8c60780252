// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

const (
	kubeCluster = "0c9d5b0e-kubernetes"
	gib         = int64(1) << 30
)

var now = time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)

// world builds the input of a map: region home with hosts pve1 (two NUMA cells) and pve2 of
// 16 CPUs and 64 GiB.
type world struct {
	in      fleet.Input
	hosts   []proxmox.HostRow
	guests  []proxmox.GuestRow
	configs map[int]*proxmox.VMConfig
}

func newWorld() *world {
	w := &world{configs: map[int]*proxmox.VMConfig{}}
	w.in = fleet.Input{KubeCluster: kubeCluster, Now: now, Pricing: instancetype.Pricing{PerVCPU: 0.025, PerGB: 0.001, PerNode: 0.005}}
	for _, name := range []string{"pve1", "pve2"} {
		w.hosts = append(w.hosts, proxmox.HostRow{Name: name, Online: true, CPUs: 16, MemoryBytes: 64 * gib})
	}
	return w
}

// guest adds a running guest with the notes of a VM, or others.
func (w *world) guest(vmid, cpus int, memory int64, notes string) {
	w.guests = append(w.guests, proxmox.GuestRow{VMID: vmid, Kind: proxmox.KindQEMU, Host: "pve1", Status: "running", CPUs: cpus, MemoryBytes: memory * gib, DiskBytes: gib})
	w.configs[vmid] = &proxmox.VMConfig{Options: map[string]string{"description": notes}}
}

// claim adds a NodeClaim with an intent for a VM of 4 CPUs and 16 GiB, decided a minute ago.
func (w *world) claim(name string, vmid int, host string, change ...func(*karpv1.NodeClaim, *instance.Intent)) {
	claim := testenv.NewNodeClaim(name, "default", "default")
	claim.UID, claim.CreationTimestamp = types.UID(name), metav1.NewTime(now.Add(-time.Minute))
	in := instance.Intent{
		Region: "home", Host: host, VMID: vmid, InstanceType: "s1.4VCPU-16GB", Cores: 4, MemoryMiB: 16 << 10, DiskBytes: 30 * gib, Storage: "local-lvm",
		Time: now.Add(-time.Minute),
	}
	claim.Annotations = map[string]string{}
	for _, c := range change {
		c(claim, &in)
	}
	if in.VMID != 0 {
		before := claim.Annotations
		testenv.SetStored(claim, &v1alpha1.ProxmoxNodeClass{}, in)
		maps.Copy(claim.Annotations, before)
	}
	w.in.Objects.Claims = append(w.in.Objects.Claims, *claim)
}

// launched adds the event of the launch of claim a, which ended some time ago.
func (w *world) launched(ago time.Duration) { w.event("a", v1alpha1.EventVMLaunched, "", ago) }

// initialized sets the conditions of a claim with a Node.
func initialized(claim *karpv1.NodeClaim, _ *instance.Intent) {
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
	for i := range claim.Status.Conditions {
		claim.Status.Conditions[i].LastTransitionTime = metav1.NewTime(now.Add(-45 * time.Second))
	}
}

func (w *world) node(ready corev1.ConditionStatus) {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(now.Add(-50 * time.Second))}}
	node.Spec.ProviderID = v1alpha1.ProviderID{Region: "home", VMID: 20001}.String()
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	w.in.Objects.Nodes = append(w.in.Objects.Nodes, node)
}

func (w *world) pod(name, node string) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi"),
	}}}}
	if node != "" {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	w.in.Objects.Pods = append(w.in.Objects.Pods, pod)
}

// event adds an event of a pod or claim.
func (w *world) event(object, reason, message string, ago time.Duration) {
	w.in.Objects.Events = append(w.in.Objects.Events, corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: object, UID: types.UID(object)}, Type: corev1.EventTypeWarning,
		Reason: reason, Message: message, LastTimestamp: metav1.NewTime(now.Add(-ago)),
	})
}

func (w *world) build(t *testing.T) fleet.Map {
	t.Helper()
	settings, err := declared.ParseSettings([]byte(`{"*": {"*": {"reservedmemory": 0}, "pve2": {"pricefactor": 2, "wattsidle": 60, "wattsfull": 180, "energyprice": 0.3},
		"pve1": {"nodes": {"0": {"cpus": "0-7", "memsize": "32Gi"}, "1": {"cpus": "8-15", "memsize": "32Gi"}}}}}`))
	testenv.Must(t, err)
	result := observed.Result{Region: "home", Configs: w.configs, Resources: proxmox.Resources{Hosts: w.hosts, Guests: w.guests}}
	for _, host := range w.hosts {
		result.Resources.Storages = append(result.Resources.Storages,
			proxmox.StorageRow{Name: "local-lvm", Host: host.Name, Type: "lvmthin", Content: []string{"images"}, Available: true, TotalBytes: 500 * gib, UsedBytes: 100 * gib},
			proxmox.StorageRow{Name: "local", Host: host.Name, Type: "dir", Content: []string{"iso"}, Available: true, TotalBytes: 50 * gib})
	}
	snapshots := map[string]*observed.Snapshot{"home": observed.NewSnapshot(result, nil, observed.VMIDRange{From: 20000, To: 99999})}
	w.in.View = inventory.NewView(snapshots, w.in.View.Failures, nil, settings, declared.Records{})
	return fleet.Build(w.in)
}

// mark returns the notes of VM 20001 of the claim "a".
func mark() string {
	return ownership.Mark{VMID: 20001, KubeCluster: kubeCluster, ClaimUID: "a"}.Notes("")
}

func TestBuildHosts(t *testing.T) {
	t.Parallel()
	g, w := NewWithT(t), newWorld()
	w.guest(100, 2, 8, "of another user")
	w.guest(20001, 4, 16, mark())
	w.claim("a", 20001, "pve1", initialized)
	w.launched(56 * time.Second)
	w.node(corev1.ConditionTrue)
	w.pod("web-1", "a")
	w.pod("web-2", "a")
	m := w.build(t)

	g.Expect(m.Hosts).To(HaveLen(2))
	host := m.Hosts[0]
	g.Expect(host.CPUs).To(Equal(fleet.Usage{Total: 16, VMs: 4, Guests: 2}))
	g.Expect(host.Memory).To(Equal(fleet.Usage{Total: 64 * gib, VMs: 16 * gib, Guests: 8 * gib}))
	g.Expect(host.Guests).To(Equal(1))
	g.Expect(host.Storages).To(ConsistOf(fleet.Storage{
		Name: "local-lvm", TotalBytes: 500 * gib, UsedBytes: 100 * gib, VMBytes: 30 * gib, FreeBytes: host.Storages[0].FreeBytes,
	}), "storages without disks of VMs are not shown")
	g.Expect(host.Cells).To(HaveLen(2))
	g.Expect(host.Cells[1].CPUs).To(Equal(fleet.Usage{Total: 8, Guests: 3}), "guests that are not bound count in each cell")
	g.Expect(m.Hosts[1].Cells).To(BeEmpty())

	vm := m.VMsOn("home", "pve1")[0]
	g.Expect(vm.Phase).To(Equal(fleet.Ready))
	g.Expect(vm.Node).To(Equal("a"))
	g.Expect(vm.PricePerHour).To(BeNumerically("~", 0.025*4+0.001*16*1.073741824+0.005, 1e-6))
	g.Expect(vm.Timeline).To(HaveExactElements(
		fleet.Step{Name: "Started", After: 4 * time.Second},
		fleet.Step{Name: "NodeRegistered", After: 10 * time.Second}, fleet.Step{Name: "Initialized", After: 15 * time.Second}))
	g.Expect(vm.Pods).To(HaveLen(2))
	g.Expect(vm.Pods[0]).To(And(HaveField("App", "web"), HaveField("MilliCPUs", int64(500)), HaveField("Ready", true)))
	g.Expect(m.NodePools).To(ConsistOf(And(HaveField("Name", "default"), HaveField("VMs", 1), HaveField("Pods", 2), HaveField("CPUs", 4))))
	g.Expect(m.Activity).To(BeEmpty(), "Karpenter is idle")
}

func TestBuildEnergy(t *testing.T) {
	t.Parallel()
	g, w := NewWithT(t), newWorld()
	w.guest(100, 2, 8, "of another user")
	w.guest(20001, 4, 16, mark())
	w.guests[0].Host, w.guests[1].Host = "pve2", "pve2"
	w.claim("a", 20001, "pve2", initialized)
	w.hosts[1].CPULoad = 0.25
	m := w.build(t)
	g.Expect(m.Hosts[0].Energy).To(BeZero(), "pve1 has no settings")
	g.Expect(m.Hosts[1].Energy.Watts).To(BeNumerically("~", 90))
	g.Expect(m.Hosts[1].Energy.CostPerHour).To(BeNumerically("~", 0.027))
	g.Expect(m.NodePools).To(HaveLen(1))
	g.Expect(m.NodePools[0].Energy.Watts).To(BeNumerically("~", 60), "the other guest has two of the six CPUs")
	g.Expect(m.NodePools[0].Energy.CostPerHour).To(BeNumerically("~", 0.018))
	w.hosts[1].Online = false
	g.Expect(w.build(t).Hosts[1].Energy).To(BeZero())
}

// VMs that are bound to a cell count there, also in a process that does not launch VMs.
func TestBuildBoundVM(t *testing.T) {
	t.Parallel()
	g, w := NewWithT(t), newWorld()
	w.guest(20001, 4, 16, mark())
	options := w.configs[20001].Options
	options["smbios1"], options["numa"], options["numa0"] = "base64=1,serial=aD1hO2k9MjAwMDE=,uuid=a", "1", "cpus=0-3,hostnodes=1,memory=16384,policy=bind"
	w.claim("a", 20001, "pve1", initialized)
	w.launched(56 * time.Second)
	m := w.build(t)
	g.Expect(m.Hosts[0].Cells[0].CPUs.VMs).To(BeZero())
	g.Expect(m.Hosts[0].Cells[1].CPUs).To(Equal(fleet.Usage{Total: 8, VMs: 4}))
	g.Expect(m.Hosts[0].Cells[1].Memory).To(Equal(fleet.Usage{Total: 32 * gib, VMs: 16 * gib}))
}

func TestBuildReservations(t *testing.T) {
	t.Parallel()
	g, w := NewWithT(t), newWorld()
	w.claim("new", 20002, "pve1")
	m := w.build(t)
	g.Expect(m.Hosts[0].CPUs).To(Equal(fleet.Usage{Total: 16, Reserved: 4}))
	g.Expect(m.Hosts[0].Storages[0].ReservedBytes).To(BeNumerically(">", 0))
	g.Expect(m.Activity).To(ConsistOf("launching nodeclaim new for nodepool default on home/pve1: planned, for 1m0s"))

	w.claim("spot", 20003, "pve1", func(_ *karpv1.NodeClaim, in *instance.Intent) { in.CapacityType = karpv1.CapacityTypeSpot })
	vms := w.build(t).VMsOn("home", "pve1")
	g.Expect(vms).To(HaveLen(2))
	g.Expect(vms[1].PricePerHour).To(Equal(vms[0].PricePerHour / 2))
}

func TestBuildPhases(t *testing.T) {
	t.Parallel()
	type step = func(*world)
	claim := func(changes ...func(*karpv1.NodeClaim, *instance.Intent)) step {
		return func(w *world) { w.claim("a", 20001, "pve1", changes...) }
	}
	unplanned := func(claim *karpv1.NodeClaim, in *instance.Intent) { claim.Status.ProviderID, in.VMID = "", 0 }
	parked := func(_ *karpv1.NodeClaim, in *instance.Intent) { in.Parked = true }
	launched := func(w *world) { w.launched(30 * time.Second) }
	justLaunched := func(w *world) { w.launched(time.Second) }
	deleted := func(claim *karpv1.NodeClaim, _ *instance.Intent) {
		claim.DeletionTimestamp = new(metav1.NewTime(now))
		claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDisruptionReason, "Underutilized", "Underutilized")
	}
	guest := func(w *world) { w.guest(20001, 4, 16, mark()) }
	unmarked := func(w *world) { w.guest(20001, 1, 1, "") }
	named := func(w *world) { w.configs[20001].Options["smbios1"] = "base64=1,serial=aD1hO2k9MjAwMDE=,uuid=a" }
	stopped := func(w *world) { w.guests[0].Status = "stopped" }
	offline := func(w *world) { w.hosts[0].Online = false }
	node := func(ready corev1.ConditionStatus) step { return func(w *world) { w.node(ready) } }
	for name, test := range map[string]struct {
		fill   []step
		phase  fleet.Phase
		reason string
	}{
		"not_planned":   {[]step{claim(unplanned)}, fleet.Planned, ""},
		"planned":       {[]step{claim()}, fleet.Planned, ""},
		"parked":        {[]step{claim(parked)}, fleet.Waiting, "insufficient capacity on the host"},
		"cloning":       {[]step{claim(), unmarked, stopped}, fleet.Cloning, ""},
		"configured":    {[]step{claim(), guest, named, stopped}, fleet.Configured, ""},
		"event_deleted": {[]step{claim(), guest}, fleet.Booting, ""},
		"booting":       {[]step{claim(), launched, guest}, fleet.Booting, ""},
		"joined":        {[]step{claim(), launched, node(corev1.ConditionFalse)}, fleet.Joined, ""},
		"not_ready":     {[]step{claim(initialized), launched, node(corev1.ConditionUnknown)}, fleet.NotReady, ""},
		"stopped":       {[]step{claim(initialized), launched, guest, stopped}, fleet.Stopped, ""},
		// Proxmox reports the state of some seconds ago.
		"just_started": {[]step{claim(), justLaunched, guest, stopped}, fleet.Booting, ""},
		"host_offline": {[]step{claim(initialized), launched, node(corev1.ConditionTrue), guest, offline}, fleet.Stopped, "the host is offline"},
		"deleting":     {[]step{claim(deleted), launched}, fleet.Deleting, "Underutilized, draining"},
		"orphaned":     {[]step{guest}, fleet.Orphaned, "the NodeClaim no longer exists"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld()
			for _, step := range test.fill {
				step(w)
			}
			NewWithT(t).Expect(w.build(t).VMs).To(ConsistOf(And(HaveField("Phase", test.phase), HaveField("Reason", test.reason))))
		})
	}
}

func TestBuildPendingPods(t *testing.T) {
	t.Parallel()
	g, w := NewWithT(t), newWorld()
	for _, name := range []string{"a-none", "b-no-host", "c-nominated", "d-failed"} {
		w.pod(name, "")
	}
	w.event("b-no-host", "FailedScheduling", "no instance type satisfied resources", time.Second)
	w.event("b-no-host", "NoHostFits", "No node can be created for this pod: nodepool default: pve1: 1 CPUs free, 2 required", 9*time.Minute)
	w.event("c-nominated", "NoHostFits", "No node can be created for this pod", 5*time.Minute)
	w.event("c-nominated", "Nominated", "Pod should schedule on: nodeclaim/a", time.Second)
	w.event("d-failed", "FailedScheduling", "incompatible requirements", time.Second)
	w.event("", "Finalized", "Finalized karpenter.sh/termination", 0)
	w.in.Objects.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
	m := w.build(t)
	var reasons []string
	for _, pod := range m.Pending {
		reasons = append(reasons, pod.Reason)
	}
	g.Expect(reasons).To(HaveExactElements("0/3 nodes are available", ContainSubstring("1 CPUs free, 2 required"), ContainSubstring("nodeclaim/a"), "incompatible requirements"))
	g.Expect(m.Activity).To(BeEmpty())
	g.Expect(m.Events[0].Object).To(HavePrefix("pod/"))
	g.Expect(m.Events).To(HaveLen(5))
}

func TestBuildProblems(t *testing.T) {
	t.Parallel()
	g, w := NewWithT(t), newWorld()
	class := testenv.NewNodeClass("default", "ubuntu", "default")
	class.StatusConditions().SetFalse(v1alpha1.ConditionCapacityAvailable, "InsufficientCapacity", "all hosts are full")
	w.in.Objects.NodeClasses = append(w.in.Objects.NodeClasses, *class)
	template := v1alpha1.ProxmoxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "debian"}}
	template.Status.Zones = []string{"home/pve1/1000"}
	template.StatusConditions().SetTrue(v1alpha1.ConditionTemplateReady)
	w.in.Objects.Templates = append(w.in.Objects.Templates, template)
	full := karpv1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: "full"}}
	full.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: v1alpha1.Group}
	full.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi")}
	full.Status.Resources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("68001112Ki")}
	static := *full.DeepCopy()
	static.Name, static.Spec.Replicas = "static", new(int64(4))
	w.in.Objects.NodePools = append(w.in.Objects.NodePools, full, static)
	w.in.View.Failures = map[string]error{"home": &inventory.PollError{Region: "home", Since: now, Count: 2, Err: errors.New("connection refused")}}
	m := w.build(t)
	g.Expect(m.Regions).To(ConsistOf(HaveField("Problem", ContainSubstring("connection refused"))))
	g.Expect(m.Problems).To(HaveExactElements(HavePrefix("nodeclass default is not ready"), "nodepool full has reached its limit: cpu: 8 of 8 used; memory: 64.9Gi of 64Gi used"))
	g.Expect(m.Templates).To(ConsistOf(fleet.Template{Kind: "ProxmoxTemplate", Name: "debian", Zones: []string{"home/pve1/1000"}}))
	g.Expect(m.Hosts[0].Unusable).To(ContainSubstring("unreachable"))
}

func TestFilterAndSort(t *testing.T) {
	t.Parallel()
	g, w := NewWithT(t), newWorld()
	for i, pool := range []string{"default", "gpu", "default"} {
		w.claim(fmt.Sprintf("vm-%d", i), 20001+i, []string{"pve1", "pve1", "pve2"}[i], func(claim *karpv1.NodeClaim, in *instance.Intent) {
			claim.Labels = map[string]string{karpv1.NodePoolLabelKey: pool}
			in.Cores += i
		})
	}
	m := w.build(t)
	names := func(m fleet.Map) (out []string) {
		for _, vm := range m.VMs {
			out = append(out, vm.Claim)
		}
		return out
	}
	g.Expect(names(m)).To(HaveExactElements("vm-0", "vm-1", "vm-2"))
	g.Expect(names(m.OfNodePool("gpu"))).To(HaveExactElements("vm-1"))
	sorted := m.Sorted(fleet.ByPrice) // pve2 costs twice as much
	g.Expect(names(sorted)).To(HaveExactElements("vm-2", "vm-1", "vm-0"))
	g.Expect(sorted.OfNodePool("default").Sorted(fleet.ByPrice).Hosts[0].Name).To(Equal("pve2"))
	g.Expect(names(m)).To(HaveExactElements("vm-0", "vm-1", "vm-2"), "the map itself is not changed")
	g.Expect(m.PricePerHour()).To(BeNumerically(">", 3*0.1))
}
