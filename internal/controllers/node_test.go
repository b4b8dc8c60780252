// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/node/registration"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// uninitialized is the taint of a kubelet that waits for a cloud controller manager.
var uninitialized = corev1.Taint{Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: corev1.TaintEffectNoSchedule}

func newRegistrationController(w *testenv.Env, kube client.Client) *registration.Controller {
	return registration.NewController(registration.Deps{
		Kube: kube, Types: w.Types, VMs: w.Instances.VMs, Inventory: w.Inventory, Recorder: w.Events, Clock: w.Clock,
	})
}

// newRegistrationNode returns the Node that a claim's VM registers with the documented boot data.
func newRegistrationNode(claim *karpv1.NodeClaim) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: claim.Name, Labels: map[string]string{corev1.LabelInstanceTypeStable: testenv.InstanceType}},
		Spec:       corev1.NodeSpec{ProviderID: claim.Status.ProviderID, Taints: []corev1.Taint{karpv1.UnregisteredNoExecuteTaint}},
		Status:     corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{SystemUUID: strings.ToUpper(string(claim.UID))}},
	}
}

func newClaim(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	return w.Planned("a", class, func(c *karpv1.NodeClaim) {
		c.Labels[corev1.LabelInstanceTypeStable] = testenv.InstanceType
		c.Labels[corev1.LabelTopologyZone] = "pve1"
	})
}

// registrationReconcile reconciles a Node. The cost must not depend on the number of NodeClaims.
func registrationReconcile(w *testenv.Env, node *corev1.Node) time.Duration {
	w.T.Helper()
	kube := interceptor.NewClient(w.Kube.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			w.Expect((&client.ListOptions{}).ApplyOptions(options).FieldSelector).NotTo(BeNil(), "a list of all objects")
			return c.List(ctx, list, options...)
		},
	})
	result, err := newRegistrationController(w, kube).Reconcile(w.T.Context(), node)
	w.Expect(err).NotTo(HaveOccurred())
	return result.RequeueAfter
}

func TestReconcileProblems(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   []string
	}{
		"valid":                      {func(*corev1.Node) {}, nil},
		"already_registered":         {func(n *corev1.Node) { n.Spec.Taints = nil; n.Labels[karpv1.NodeRegisteredLabelKey] = "true" }, nil},
		"found_by_name_without_UUID": {func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = ""; n.Spec.Taints = nil }, []string{"without the taint karpenter.sh/unregistered:NoExecute"}},
		"foreign_node":               {func(n *corev1.Node) { n.Status.NodeInfo.SystemUUID = "other"; n.Spec.ProviderID = "" }, nil},
		"no_provider_ID": {func(n *corev1.Node) { n.Spec.ProviderID = "" },
			[]string{"it has no provider ID, so Karpenter cannot find it", "--provider-id={{ .Metadata.ProviderID }}"}},
		"provider_ID_set_by_cloud_controller_manager_later": {func(n *corev1.Node) {
			n.Spec.ProviderID = ""
			n.Spec.Taints = append(n.Spec.Taints, uninitialized)
		}, nil},
		"another_provider_ID": {func(n *corev1.Node) { n.Spec.ProviderID = "k3s://a" }, []string{"its provider ID is k3s://a, not proxmox://region-1/"}},
		"another_name":        {func(n *corev1.Node) { n.Name += ".example.com" }, []string{".example.com; the VM's hostname must be {{ .Metadata.Hostname }}"}},
		"no_taint": {func(n *corev1.Node) { n.Spec.Taints = nil },
			[]string{"without the taint karpenter.sh/unregistered:NoExecute", "--register-with-taints={{ .Kubernetes.NodeTaints }}"}},
		"another_label": {func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = "elsewhere" },
			[]string{`label topology.kubernetes.io/zone is "elsewhere", not "pve1"; use {{ .Kubernetes.NodeLabels }}`}},
		"label_changed_later": {func(n *corev1.Node) {
			n.Labels[karpv1.NodeRegisteredLabelKey], n.Labels[corev1.LabelInstanceTypeStable] = "true", "k3s"
		}, []string{`label node.kubernetes.io/instance-type is "k3s", not "t1.2VCPU-6GB"; a cloud controller manager changes them`}},
		"several_problems": {func(n *corev1.Node) { n.Spec = corev1.NodeSpec{} }, []string{"no provider ID", "without the taint"}},
	} {
		testenv.With().Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			class := w.Class()
			claim := newClaim(w, class)
			node := newRegistrationNode(claim)
			test.change(node)
			registrationReconcile(w, node)
			if test.want == nil {
				w.Expect(w.Events.Messages(v1alpha1.EventRegistrationInvalid)).To(BeEmpty())
				return
			}
			for _, want := range test.want {
				w.Expect(w.Events.Messages(v1alpha1.EventRegistrationInvalid)).To(HaveEach(ContainSubstring(want)))
			}
			w.Expect(w.Events.Reasons(claim)).To(Equal([]string{v1alpha1.EventRegistrationInvalid}))
			w.Expect(w.Events.Reasons(class)).To(Equal([]string{v1alpha1.EventRegistrationInvalid}), "the NodeClass refers to the boot data")
		})
	}
}

func TestReconcileUntilInitialized(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t)
	claim := newClaim(w, w.Class()) // in the manager's cache when the Node appears
	w.StartManager(func(kube client.Client) testenv.Registrar { return newRegistrationController(w, kube) })
	node := newRegistrationNode(claim)
	node.Spec.ProviderID = ""
	w.Create(node)
	countEvents := func() int { return len(w.Events.Messages(v1alpha1.EventRegistrationInvalid)) }
	w.Eventually(countEvents).Should(Equal(2), "of the NodeClaim and its NodeClass")

	testenv.Modify(w, node, func(n *corev1.Node) { n.Labels[karpv1.NodeInitializedLabelKey] = "true" })
	testenv.Modify(w, node, func(n *corev1.Node) { n.Labels["other"] = "label" })
	w.Consistently(countEvents).WithTimeout(500 * time.Millisecond).Should(Equal(2))
}

// TestReconcileCloudControllerManager: a cloud controller manager removes its taint and
// sets matching labels. A missing one is reported.
func TestReconcileCloudControllerManager(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		claim := newClaim(w, class)
		node := newRegistrationNode(claim)
		node.Spec.ProviderID = ""
		node.Spec.Taints = append(node.Spec.Taints, uninitialized)
		node.CreationTimestamp = metav1.NewTime(w.Clock.Now())
		w.Expect(registrationReconcile(w, node)).To(BeNumerically("~", 3*time.Minute, time.Second), "the timeout has not passed")
		w.Expect(w.Events.Reasons(claim)).To(BeEmpty())

		initialized := node.DeepCopy()
		initialized.Spec = corev1.NodeSpec{ProviderID: claim.Status.ProviderID, Taints: []corev1.Taint{karpv1.UnregisteredNoExecuteTaint}}
		initialized.Labels[corev1.LabelTopologyZone], initialized.Labels[corev1.LabelTopologyRegion] = "pve1", testenv.Region
		w.Expect(registrationReconcile(w, initialized)).To(BeZero())
		w.Expect(w.Events.Reasons(claim)).To(BeEmpty())

		w.Clock.Advance(3 * time.Minute)
		registrationReconcile(w, node)
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{v1alpha1.EventCloudControllerManagerMissing}))
		w.Expect(w.Events.Reasons(class)).To(Equal([]string{v1alpha1.EventCloudControllerManagerMissing}))
		w.Expect(w.Events.Messages(v1alpha1.EventCloudControllerManagerMissing)).To(HaveEach(And(
			ContainSubstring("--cloud-provider=external"), ContainSubstring("install the Proxmox one, or remove the flag"))))
	})
}

// newCapacityNode creates the initialized Node of a claim. It reports its VM's memory without an
// overhead.
func newCapacityNode(w *testenv.Env, claim *karpv1.NodeClaim, overheadMiB int) *corev1.Node {
	node := w.Node(claim)
	testenv.Modify(w, node, func(n *corev1.Node) {
		metav1.SetMetaDataLabel(&n.ObjectMeta, karpv1.NodeRegisteredLabelKey, "true")
		metav1.SetMetaDataLabel(&n.ObjectMeta, karpv1.NodeInitializedLabelKey, "true")
	})
	setMemory(w, node, int64(w.Intent(claim).MemoryMiB-overheadMiB)<<20)
	return node
}

func setMemory(w *testenv.Env, node *corev1.Node, memory int64) {
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)}
	w.Expect(w.Kube.Status().Update(w.T.Context(), node)).To(Succeed())
}

// memory returns the memory that new Nodes of the claim's type are expected to report.
func memory(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim) int64 {
	w.T.Helper()
	it, ok := w.Types.Get(testenv.Reload(w, class), w.Intent(claim).InstanceType)
	w.Expect(ok).To(BeTrue())
	return it.Capacity.Memory().Value() >> 20
}

func TestCapacityReconcile(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		claim := w.Launched("a", class)
		launched := int64(w.Intent(claim).MemoryMiB)
		node := newCapacityNode(w, claim, 175)
		w.Expect(memory(w, class, claim)).To(Equal(launched), "the estimate of the test is no overhead")

		w.Expect(registrationReconcile(w, node)).To(BeZero())
		learned := memory(w, class, claim)
		w.Expect(learned).To(And(BeNumerically("<=", launched-175), BeNumerically(">=", launched-177)))

		version := testenv.Reload(w, class).ResourceVersion
		w.Expect(registrationReconcile(w, node)).To(BeZero())
		setMemory(w, node, (launched-170)<<20)
		w.Expect(registrationReconcile(w, node)).To(BeZero())
		w.Expect(testenv.Reload(w, class).ResourceVersion).To(Equal(version), "a Node with the same or more memory changes nothing")

		w.Restart(false)
		w.Expect(registrationReconcile(w, node)).To(BeNumerically(">", 0), "the VM is known when its Cluster was polled")
		w.Refresh()
		w.Expect(memory(w, class, claim)).To(Equal(learned), "after a restart")
		setMemory(w, node, (launched-180)<<20)
		w.Expect(registrationReconcile(w, node)).To(BeZero())
		w.Expect(memory(w, class, claim)).To(BeNumerically("<", learned))
		learned = memory(w, class, claim)
		w.Expect(w.Kube.Delete(w.Context(), node)).To(Succeed())
		w.Restart(true)
		w.Expect(memory(w, class, claim)).To(Equal(learned), "without Nodes")
		w.Expect(w.Events.Messages(v1alpha1.EventNodeCapacityIgnored)).To(BeEmpty())
	})
}

func TestReconcileIgnored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		mark   func(*ownership.Mark)
		event  string
	}{
		"not_initialized": {change: func(n *corev1.Node) { delete(n.Labels, karpv1.NodeInitializedLabelKey) }},
		"no_provider_ID":  {change: func(n *corev1.Node) { n.Spec.ProviderID = "" }},
		"another_node":    {change: func(n *corev1.Node) { n.Name = "another" }},
		"no_memory":       {change: func(n *corev1.Node) { n.Status.Capacity = nil }, event: "reports 0 MiB of memory"},
		"more_than_the_VM": {
			change: func(n *corev1.Node) { n.Status.Capacity[corev1.ResourceMemory] = resource.MustParse("1Ti") },
			event:  "reports 1048576 MiB of memory, want less than",
		},
		"adopted":     {mark: func(m *ownership.Mark) { m.Source = nil }},
		"older_image": {mark: func(m *ownership.Mark) { m.Source.Image = "older" }},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			class := w.Class()
			claim := w.Launched("a", class)
			node := newCapacityNode(w, claim, 175)
			change(node, c.change)
			if c.mark != nil {
				setMark(w, claim, c.mark)
			}
			w.Expect(registrationReconcile(w, node)).To(BeZero())
			w.Expect(testenv.Reload(w, class).Status.MemoryOverhead).To(BeEmpty())
			messages := w.Events.Messages(v1alpha1.EventNodeCapacityIgnored)
			w.Expect(messages).To(HaveLen(min(1, len(c.event))))
			w.Expect(strings.Join(messages, "")).To(ContainSubstring(c.event))
		})
	}
}

// TestRegister checks that the controller records Nodes when they are initialized and when
// their capacity changes, with writes of other controllers in between.
func TestRegister(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t)
	class := w.Class()
	first, second := w.Launched("a", class), w.Launched("b", class)
	launched := w.Intent(first).MemoryMiB
	w.StartManager(func(kube client.Client) testenv.Registrar { return newRegistrationController(w, kube) })
	expectOverhead := func(overhead int) {
		t.Helper()
		w.Eventually(func() string {
			sizes := ""
			for _, learned := range testenv.Reload(w, class).Status.MemoryOverhead {
				sizes += fmt.Sprint(learned.Sizes)
			}
			return sizes
		}).Should(Equal(fmt.Sprintf("[{%d %d}]", launched, overhead)))
	}
	node := newCapacityNode(w, first, 175)
	expectOverhead(175)
	newCapacityNode(w, second, 180)
	expectOverhead(180)
	setMemory(w, testenv.Reload(w, node), int64(launched-190)<<20)
	expectOverhead(190)
}
