// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	autoscalingv1beta1 "sigs.k8s.io/karpenter/pkg/apis/autoscaling/v1beta1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corev1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withSpot makes a Process with two on-demand types and a spot type.
func withSpot(t *testing.T) testenv.Option {
	t.Helper()
	catalog, err := instancetype.Parse([]byte(`[
		{"name": "small", "capacity": {"cpu": "2", "memory": "4Gi"}},
		{"name": "large", "capacity": {"cpu": "8", "memory": "16Gi"}, "capacitytype": "on-demand"},
		{"name": "large-spot", "capacity": {"cpu": "8", "memory": "16Gi"}, "capacitytype": "spot"}]`))
	testenv.Must(t, err)
	return testenv.Catalog(catalog)
}

// TestScheduleSpot lets core's scheduler select between spot and on-demand types.
func TestScheduleSpot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		policy v1alpha1.VMSizePolicy
		// required and selected are the capacity types that the NodePool requires and that the pod selects.
		required, selected, cpu string
		want, capacityType      string
	}{
		"cheapest":                      {cpu: "4", want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"pod_selects_on_demand":         {cpu: "4", selected: karpv1.CapacityTypeOnDemand, want: "large", capacityType: karpv1.CapacityTypeOnDemand},
		"NodePool_requires_spot":        {cpu: "1", required: karpv1.CapacityTypeSpot, want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"exact_size":                    {policy: v1alpha1.VMSizeExact, cpu: "2500m", want: "e1.3VCPU-1GB", capacityType: karpv1.CapacityTypeOnDemand},
		"spot_is_cheaper_than_the_size": {policy: v1alpha1.VMSizeExact, cpu: "6500m", want: "large-spot", capacityType: karpv1.CapacityTypeSpot},
		"spot_has_no_exact_size": {
			policy: v1alpha1.VMSizeExact, cpu: "1", selected: karpv1.CapacityTypeSpot, want: "large-spot", capacityType: karpv1.CapacityTypeSpot,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKarpenter(t, testenv.NoPolling(), withSpot(t))
			k.readyPool(func(class *v1alpha1.ProxmoxNodeClass, p *karpv1.NodePool) {
				class.Spec.VMSize.Policy = c.policy
				if c.required != "" {
					p.Spec.Template.Spec.Requirements = requires(karpv1.CapacityTypeLabelKey, c.required)
				}
			})
			k.PendingPod("pod", c.cpu, func(p *corev1.Pod) {
				if c.selected != "" {
					p.Spec.NodeSelector = map[string]string{karpv1.CapacityTypeLabelKey: c.selected}
				}
			})
			claim := k.launchOne()
			in := k.Intent(claim)
			k.Expect(in.InstanceType).To(Equal(c.want))
			k.Expect(in.CapacityType).To(Equal(c.capacityType))
			k.Expect(claim.Labels).To(And(
				HaveKeyWithValue(corev1.LabelInstanceTypeStable, c.want), HaveKeyWithValue(karpv1.CapacityTypeLabelKey, c.capacityType)))
			k.expectScheduled(claim)
			k.expectDrift(claim, "")
		})
	}
}

// TestCreateAssumedSpot checks Claims for the replacement of an on-demand Node: core lists cheaper types and
// requires spot if the NodePool allows both, also if on-demand types are cheaper. If a pod requires spot, it
// lists only spot types.
func TestCreateAssumedSpot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		listed []string
		want   string
	}{
		"on_demand":       {[]string{"small"}, "small"},
		"both":            {[]string{"small", "large-spot"}, "small"},
		"required_by_pod": {[]string{"large-spot"}, "large-spot"},
	} {
		testenv.With(testenv.NoPolling(), withSpot(t)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			class := w.Class()
			w.Pool(class, func(p *karpv1.NodePool) { p.Spec.Template.Spec.Requirements = nil })
			claim := w.Claim("a", class, func(claim *karpv1.NodeClaim) {
				claim.Spec.Requirements = append(requires(corev1.LabelInstanceTypeStable, c.listed...), requires(karpv1.CapacityTypeLabelKey, karpv1.CapacityTypeSpot)...)
			})
			filled, err := w.CloudProvider().Create(w.Context(), claim)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(filled.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, c.want))
		})
	}
}

// withARM64 makes the second host arm64, which releases before 9.2 do not report.
func withARM64() testenv.Option {
	return testenv.Scenario(func(s *pvesim.Scenario) { s.Version, s.Hosts[1].Arch = "9.2", "aarch64" })
}

// Karpenter counts the host ports of DaemonSets by instance type: those of one architecture
// must not block the other.
func TestScheduleArchitectures(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(2), withARM64())
	k.readyPool()
	for arch, port := range map[string]int32{karpv1.ArchitectureAmd64: 8000, karpv1.ArchitectureArm64: 9000} {
		ports := []corev1.ContainerPort{{ContainerPort: port, HostPort: port}}
		k.daemonSet(arch, labelIn(corev1.LabelArchStable, arch), corev1.Container{Ports: ports})
		// Without topology spread constraints: core tries one zone per pod, at random.
		k.PendingPod("on-the-other-than-"+arch, "1", func(p *corev1.Pod) { p.Spec.Containers[0].Ports = ports })
	}
	hosts := map[string]string{}
	for _, claim := range k.launchPending() {
		hosts[claim.Labels[corev1.LabelTopologyZone]] = claim.Labels[corev1.LabelArchStable]
		if claim.Labels[corev1.LabelArchStable] == karpv1.ArchitectureArm64 {
			k.Expect(claim.Labels[corev1.LabelInstanceTypeStable]).To(HaveSuffix("-arm64"))
		}
		k.expectDrift(claim, "")
	}
	k.Expect(hosts).To(Equal(map[string]string{"pve1": karpv1.ArchitectureAmd64, "pve2": karpv1.ArchitectureArm64}))
}

// A Node that was created when all hosts of its class were arm64 keeps its type.
func TestScheduleArchitecturesKeepNode(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(2), withARM64())
	class := k.readyPool()
	claim := k.Launched("a", class, func(c *karpv1.NodeClaim) {
		c.Spec.Requirements[0].Values = append(c.Spec.Requirements[0].Values, testenv.InstanceType+"-arm64")
		c.Spec.Requirements = append(c.Spec.Requirements, requires(corev1.LabelArchStable, karpv1.ArchitectureArm64)...)
	})
	labels := k.Types.Labels(class, testenv.InstanceType, placement.Zone{Region: testenv.Region, Host: "pve2"})
	k.Expect(labels).To(HaveKeyWithValue(corev1.LabelArchStable, karpv1.ArchitectureArm64))
	maps.Copy(claim.Labels, labels)
	k.Expect(k.Kube.Update(k.ctx, claim)).To(Succeed())
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	k.Expect(k.Kube.Status().Update(k.ctx, claim)).To(Succeed())
	k.expectDrift(claim, "")
}

func TestCreateWithNodeOverlays(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	class := k.readyPool()
	types := k.Types.List(class, "")
	bigger := types[slices.IndexFunc(types, func(it *corecloudprovider.InstanceType) bool { return it.Capacity.Cpu().Value() == 4 })].Name
	store, cp := k.Instances.Overlays, k.CloudProvider()
	either := func(c *karpv1.NodeClaim) { c.Spec.Requirements[0].Values = []string{testenv.InstanceType, bigger} }
	plain, err := cp.Create(t.Context(), k.Claim("plain", class, either))
	k.Expect(err).NotTo(HaveOccurred(), "NodeOverlays that were not evaluated yet are ignored")
	k.Expect(plain.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, testenv.InstanceType))

	k.Create(&corev1alpha1.NodeOverlay{
		ObjectMeta: metav1.ObjectMeta{Name: k.Named("bargain")},
		Spec: corev1alpha1.NodeOverlaySpec{
			Requirements: []corev1alpha1.NodeSelectorRequirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{bigger}}},
			Price:        new("0.000001"),
			Capacity:     corev1.ResourceList{"example.com/license": resource.MustParse("1")},
		},
	})
	_, err = nodeoverlay.NewController(k.Clock, k.Kube, cp, store, k.cluster).Reconcile(k.ctx, reconcile.Request{})
	k.Expect(err).NotTo(HaveOccurred())
	filled, err := cp.Create(t.Context(), k.Claim("overlaid", class, either))
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(filled.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, bigger), "price of the overlay")
	k.Expect(filled.Status.Capacity).To(HaveKey(corev1.ResourceName("example.com/license")), "capacity of the overlay")
}

func withExactSizes(class *v1alpha1.ProxmoxNodeClass, _ *karpv1.NodePool) {
	class.Spec.VMSize.Policy = v1alpha1.VMSizeExact
}

// TestScheduleExactSize lets core's scheduler select instance types for pods, and checks the size
// of the VM that they get, and that the pods fit there.
func TestScheduleExactSize(t *testing.T) {
	t.Parallel()
	const medium, large = "c1.4VCPU-8GB", "c1.8VCPU-16GB"
	selects := func(key, instanceType string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{key: instanceType} }
	}
	affinity := func(affinity corev1.NodeAffinity) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &affinity} }
	}
	isLarge := nodeSelector(labelIn(corev1.LabelInstanceTypeStable, large)).NodeSelectorTerms[0]
	daemon := func(key string, operator corev1.NodeSelectorOperator, value string) *corev1.NodeSelectorRequirement {
		return &corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: []string{value}}
	}
	for name, c := range map[string]struct {
		requires []karpv1.NodeSelectorRequirementWithMinValues
		// label is the one that the NodePool has for the medium instance type.
		label string
		max   v1alpha1.VMSize
		pod   func(*corev1.Pod)
		// daemonSet is the requirement of a DaemonSet that needs one CPU.
		daemonSet *corev1.NodeSelectorRequirement
		want      string
		cpus      int
	}{
		"what_the_pod_needs":                 {want: "e1.3VCPU-1GB", cpus: 3},
		"pod_names_a_type":                   {pod: selects(corev1.LabelInstanceTypeStable, large), want: large, cpus: 8},
		"pod_names_a_type_with_an_old_label": {pod: selects(corev1.LabelInstanceType, large), want: large, cpus: 8},
		"pod_names_the_only_type_that_fits": {
			max: v1alpha1.VMSize{CPU: 4, Memory: "8Gi"}, pod: selects(corev1.LabelInstanceTypeStable, medium), want: medium, cpus: 4,
		},
		"pod_names_a_type_in_a_later_term": {
			pod: affinity(corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: nodeSelector(
				labelIn(corev1.LabelInstanceTypeStable, "missing"), labelIn(corev1.LabelInstanceTypeStable, large))}),
			want: large, cpus: 8,
		},
		"pod_prefers_a_type": {
			pod: affinity(corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{Weight: 1, Preference: isLarge},
			}}),
			want: large, cpus: 8,
		},
		"DaemonSet_excludes_a_type": {
			daemonSet: daemon(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpNotIn, "c1.1VCPU-2GB"), want: medium, cpus: 4,
		},
		"DaemonSet_for_small_Nodes":              {daemonSet: daemon(v1alpha1.LabelInstanceCPU, corev1.NodeSelectorOpLt, "4"), want: medium, cpus: 4},
		"DaemonSet_for_all_Nodes":                {daemonSet: daemon(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"), want: "e1.4VCPU-1GB", cpus: 4},
		"NodePool_names_types":                   {requires: requires(corev1.LabelInstanceTypeStable, medium, large), want: medium, cpus: 4},
		"NodePool_names_types_with_an_old_label": {requires: requires(corev1.LabelInstanceType, medium, large), want: medium, cpus: 4},
		"NodePool_has_the_label_of_a_type":       {label: corev1.LabelInstanceTypeStable, want: medium, cpus: 4},
		"NodePool_needs_a_choice_of_types": {
			requires: []karpv1.NodeSelectorRequirementWithMinValues{
				{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpExists, MinValues: new(4)},
			},
			want: "e1.3VCPU-1GB", cpus: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKarpenter(t, testenv.NoPolling())
			k.readyPool(withExactSizes, func(class *v1alpha1.ProxmoxNodeClass, p *karpv1.NodePool) {
				class.Spec.VMSize.Max, p.Spec.Template.Spec.Requirements = c.max, c.requires
				if c.label != "" {
					p.Spec.Template.Labels = map[string]string{c.label: medium}
				}
			})
			if c.daemonSet != nil {
				k.daemonSet("agent", *c.daemonSet, corev1.Container{Resources: cpus("1")})
			}
			k.pending("pod", "2500m", func(p *corev1.Pod) {
				if c.pod != nil {
					c.pod(p)
				}
			})
			claim := k.launchOne()
			k.Expect(claim.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, c.want))
			k.Expect(k.Intent(claim).Cores).To(Equal(c.cpus))
			k.Expect(claim.Status.Capacity.Cpu().Value()).To(BeEquivalentTo(c.cpus))
			k.expectScheduled(claim)
		})
	}
}

// Core adds the smallest requests that DaemonSets have on any of the types. If they differ, those on the
// Node may be larger.
func TestScheduleExactSizeArchitectures(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(2), withARM64())
	k.readyPool(withExactSizes)
	k.daemonSet("agent", labelIn(corev1.LabelArchStable, karpv1.ArchitectureAmd64), corev1.Container{Resources: cpus("1")})
	k.PendingPod("pod", "2500m")
	k.expectScheduled(k.launchOne())
}

// The pods of a CapacityBuffer exist only in core's memory.
func TestScheduleExactSizeBuffer(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	k.readyPool(withExactSizes)
	k.Create(&corev1.PodTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "reserve"}, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelInstanceTypeStable: "c1.8VCPU-16GB"},
		Containers:   []corev1.Container{{Name: "reserve", Image: "reserve", Resources: cpus("2500m")}},
	}}})
	buffer := &autoscalingv1beta1.CapacityBuffer{ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "reserve"}, Spec: autoscalingv1beta1.CapacityBufferSpec{
		PodTemplateRef: &autoscalingv1beta1.LocalObjectRef{Name: "reserve"}, Replicas: new(int32(1)),
	}}
	k.Create(buffer)
	buffer.Status.Replicas = new(int32(1))
	meta.SetStatusCondition(&buffer.Status.Conditions, metav1.Condition{
		Type: autoscalingv1beta1.ReadyForProvisioningCondition, Status: metav1.ConditionTrue, Reason: "Resolved",
	})
	k.Expect(k.Kube.Status().Update(k.ctx, buffer)).To(Succeed())
	claim := k.launchOne()
	k.Expect(claim.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "c1.8VCPU-16GB"))
	k.expectScheduled(claim)
}

// A pod gets a VM of the same size again on a full host, although no type of the catalog that is
// large enough fits there.
func TestScheduleExactSizeOnFullHost(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Hosts[0].Sockets, s.Hosts[0].Cores, s.Hosts[0].Threads = 1, 4, 1
		s.Guests = slices.DeleteFunc(s.Guests, func(g pvesim.Guest) bool { return g.VMID < 9000 })
	}))
	k.readyPool(withExactSizes)
	launch := func(cpu string) *karpv1.NodeClaim {
		pod := k.PendingPod("with-"+cpu, cpu)
		claim := k.launchOne()
		k.Expect(k.Kube.Delete(k.ctx, pod)).To(Succeed())
		return claim
	}
	first := launch("2500m")
	k.Expect(first.Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "e1.3VCPU-1GB"))
	launch("500m")
	k.Delete(first)
	k.Refresh()
	k.Expect(launch("2500m").Labels).To(HaveKeyWithValue(corev1.LabelInstanceTypeStable, "e1.3VCPU-1GB"))
}

// TestLearnedCapacity checks that what Nodes report changes the capacity of new Nodes. It replaces no
// existing one, and neither does a class that no longer has exact sizes, also after a restart.
func TestLearnedCapacity(t *testing.T) {
	t.Parallel()
	withMemory := func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("500Mi")
	}
	k := newKarpenter(t, testenv.NoPolling())
	class := k.readyPool(withExactSizes)
	pod := k.PendingPod("pod", "2500m", withMemory)
	claim := k.launchOne()
	in := k.Intent(claim)
	k.Expect(claim.Status.Capacity.Memory().Value()>>20).To(BeEquivalentTo(in.MemoryMiB), "the estimate of the test is no overhead")

	testenv.Reload(k.Env, class)
	class.Status.MemoryOverhead = []v1alpha1.MemoryOverhead{{
		Image: in.ImageID, BIOS: "seabios", Machine: "pc", Sizes: []v1alpha1.MemoryOverheadSize{{MemoryMiB: int64(in.MemoryMiB), OverheadMiB: 400}},
	}}
	k.Expect(k.Kube.Status().Update(k.ctx, class)).To(Succeed())

	// The same pods get a VM that is larger by the overhead.
	k.Expect(k.Kube.Delete(k.ctx, pod)).To(Succeed())
	k.PendingPod("other", "2500m", withMemory)
	larger := k.launchOne()
	k.Expect(k.Intent(larger).MemoryMiB).To(Equal(in.MemoryMiB + 512))
	k.Expect(larger.Status.Capacity.Memory().Value() >> 20).To(BeEquivalentTo(in.MemoryMiB + 512 - 401))

	k.Restart(true)
	k.expectDrift(claim, "")
	testenv.Modify(k.Env, class, func(class *v1alpha1.ProxmoxNodeClass) { class.Spec.VMSize.Policy = v1alpha1.VMSizeInstanceType })
	k.expectDrift(claim, "")
}
