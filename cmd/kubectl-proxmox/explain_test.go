// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// runIn runs the plugin on the objects of an Env and returns its output.
func runIn(w *testenv.Env, args ...string) (string, error) {
	w.T.Helper()
	var out bytes.Buffer
	root := newRootFor(&kubeCluster{client: w.Kube})
	root.SetArgs(append([]string{"--kubeconfig", kubeconfig(w)}, args...))
	root.SetOut(&out)
	err := root.ExecuteContext(w.T.Context())
	return out.String(), err
}

// explained returns the output of explain for an object in the namespace of an Env.
func explained(w *testenv.Env, object string) string {
	w.T.Helper()
	out, err := runIn(w, "explain", object, "-n", w.Name)
	w.Expect(err).NotTo(HaveOccurred())
	return out
}

// createEvent creates an event of an object, a number of minutes after noon.
func createEvent(w *testenv.Env, object client.Object, kind string, minute int, eventType, reason, message string) {
	at := metav1.NewTime(time.Date(2026, 11, 16, 12, minute, 0, 0, time.UTC))
	event := &corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID()},
		Type:           eventType, Reason: reason, Message: message, FirstTimestamp: at, LastTimestamp: at,
	}
	event.GenerateName, event.Namespace = "event-", "default"
	if object.GetNamespace() != "" {
		event.Namespace = object.GetNamespace()
	}
	w.Create(event)
}

func setPoolStatus(w *testenv.Env, pool *karpv1.NodePool, used corev1.ResourceList) {
	w.T.Helper()
	pool.Status.Resources = used
	pool.StatusConditions().SetTrue(karpv1.ConditionTypeValidationSucceeded)
	pool.StatusConditions().SetTrue(karpv1.ConditionTypeNodeClassReady)
	w.Expect(w.Kube.Status().Update(w.T.Context(), pool)).To(Succeed())
}

func TestExplainNominatedPod(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	pool := w.Pool(class)
	setPoolStatus(w, pool, nil)
	claim := w.Launched("a", class)
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	claim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeRegistered, "NodeNotFound", "Node not registered with cluster")
	w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
	createEvent(w, claim, "NodeClaim", 3, corev1.EventTypeWarning, "NodeNotJoined", "VM 1 has been running,\x1b[2J but no Node joined")
	createEvent(w, claim, "NodeClaim", 4, corev1.EventTypeNormal, "DisruptionBlocked", "is not shown")
	class = testenv.Reload(w, class)
	class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "region-1/pve2", Reason: "bridge \"vmbr0\" is not on this host"}}
	w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
	pod := w.PendingPod("web", "2")
	createEvent(w, pod, "Pod", 1, corev1.EventTypeNormal, "Nominated", "Pod should schedule on: nodeclaim/"+claim.Name)

	vm := fmt.Sprintf("VM %d on host pve1 of region region-1", w.Intent(claim).VMID)
	w.Expect(explained(w, "pod/web")).To(Equal("pod " + w.Name + "/web is waiting: nodeclaim " + claim.Name + " was created for it and is not ready: Registered is Unknown: Node not registered with cluster\n" +
		"pod " + w.Name + "/web\n" +
		"  12:01:00 UTC Nominated: Pod should schedule on: nodeclaim/" + claim.Name + "\n" +
		"nodeclaim " + claim.Name + ", " + vm + "\n" +
		"  Initialized is Unknown: object is awaiting reconciliation\n" +
		"  Registered is Unknown: Node not registered with cluster\n" +
		"  12:03:00 UTC NodeNotJoined: VM 1 has been running, [2J but no Node joined\n" +
		"nodepool " + pool.Name + "\n" +
		"proxmoxnodeclass " + class.Name + ", usable hosts: 1\n" +
		"  region-1/pve2 is not usable: bridge \"vmbr0\" is not on this host\n"))
}

// Conditions that wait for another one are not listed, and hosts with the same reason are in
// one line.
func TestExplainClass(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	class.StatusConditions().SetUnknownWithReason(v1alpha1.ConditionNetworkReady, v1alpha1.ReasonNotChecked, "not checked until condition InstanceTemplateReady is true")
	class.StatusConditions().SetFalse(v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, "no template")
	class.Status.UnusableZones = []v1alpha1.UnusableZone{
		{Zone: "region-1/pve2", Reason: "no template"}, {Zone: "region-1/pve3", Reason: "offline"}, {Zone: "region-1/pve4", Reason: "no template"},
	}
	w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
	w.Expect(explained(w, "nodeclass/"+class.Name)).To(HaveSuffix("\nproxmoxnodeclass " + class.Name + ", usable hosts: 1\n" +
		"  InstanceTemplateReady is False: no template\n" +
		"  region-1/pve2, region-1/pve4 are not usable: no template\n" +
		"  region-1/pve3 is not usable: offline\n"))
}

func TestDescribeError(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	missing := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "karpenter.sh", Kind: "NodePool"}, SearchedVersions: []string{"v1"}}
	g.Expect(describeError(fmt.Errorf("reading NodePool a: %w", missing))).To(MatchError(
		`reading NodePool a: no matches for kind "NodePool" in version "karpenter.sh/v1"; the CRDs are missing: is the controller installed?`))
	g.Expect(describeError(errors.New("connection refused"))).To(MatchError("connection refused"))
}

// A NodePool that the pod cannot use, one without a class and one of another provider do not
// end the explanation.
func TestExplainPools(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "team", Value: "blue", Effect: corev1.TaintEffectNoSchedule}
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	named := func(name string) func(*karpv1.NodePool) {
		return func(p *karpv1.NodePool) { p.Name = w.Named(name) }
	}
	tainted := w.Pool(class, named("a-tainted"), func(p *karpv1.NodePool) { p.Spec.Template.Spec.Taints = []corev1.Taint{taint} })
	missing := w.Pool(class, named("b-missing"), func(p *karpv1.NodePool) { p.Spec.Template.Spec.NodeClassRef.Name = "absent" })
	other := w.Pool(class, named("c-other"), func(p *karpv1.NodePool) {
		p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
	})
	limited := w.Pool(class, named("d-limited"), func(p *karpv1.NodePool) {
		p.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi")}
	})
	for _, pool := range []*karpv1.NodePool{tainted, missing, other} {
		setPoolStatus(w, pool, nil)
	}
	setPoolStatus(w, limited, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("7"), corev1.ResourceMemory: resource.MustParse("28Gi")})
	w.PendingPod("web", "2")

	const absent = "ProxmoxNodeClass absent does not exist; create it, or change spec.template.spec.nodeClassRef of the NodePool"
	w.Expect(explained(w, "pod/web")).To(Equal("pod " + w.Name + "/web is waiting: no node can be created for it: nodepool " + missing.Name + ": " + absent +
		"; nodepool " + limited.Name + ": its limit is reached: cpu: 7 of 8 used, the pod requests 2\n" +
		"pod " + w.Name + "/web\n" +
		"nodepool " + missing.Name + "\n" +
		"nodepool " + other.Name + "\n" +
		"  not checked: it belongs to another provider, with class EC2NodeClass default of group karpenter.k8s.aws\n" +
		"nodepool " + limited.Name + "\n" +
		"  limit of cpu: 7 of 8 used\n" +
		"  limit of memory: 28Gi of 64Gi used\n" +
		"proxmoxnodeclass " + class.Name + ", usable hosts: 1\n"))
	w.Expect(explained(w, "nodepool/"+missing.Name)).To(HavePrefix("nodepool " + missing.Name + " cannot create nodes: " + absent + "\n"))
	w.Expect(explained(w, "nodepool/"+other.Name)).To(Equal("nodepool " + other.Name + " belongs to another provider: its class is EC2NodeClass default of group karpenter.k8s.aws\n"))
	w.Expect(explained(w, "nodepool/"+limited.Name)).To(HavePrefix("nodepool " + limited.Name + " can create nodes\n"))
	w.Expect(explained(w, "pnc/"+class.Name)).To(Equal("proxmoxnodeclass " + class.Name + " is ready\nproxmoxnodeclass " + class.Name + ", usable hosts: 1\n"))

	setPoolStatus(w, testenv.Reload(w, limited), corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")})
	w.Expect(explained(w, "nodepool/"+limited.Name)).To(HavePrefix("nodepool " + limited.Name + " cannot create nodes: its limit is reached: cpu: 8 of 8 used\n"))
}

func TestExplainPod(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pod    func(*corev1.Pod)
		pool   func(*karpv1.NodePool)
		events map[string]string
		want   string
	}{
		"gated":     {pod: func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}} }, want: "it has scheduling gates: example.com/quota"},
		"not_tried": {want: "Karpenter has not tried to schedule it yet"},
		"no_usable_pool": {pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "pve9"} },
			pool: func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"pve1", "pve2"}}}
			},
			want: "no NodePool can be used for it: nodepool POOL: key topology.kubernetes.io/zone, topology.kubernetes.io/zone In [pve9] not in topology.kubernetes.io/zone In [pve1 pve2]"},
		"no_host_fits": {events: map[string]string{"NoHostFits": "No node can be created for this pod: nodepool POOL: no host fits", "FailedScheduling": "Failed to schedule pod"},
			want: "No node can be created for this pod: nodepool POOL: no host fits"},
		"types_exceed_limit": {pool: func(p *karpv1.NodePool) { p.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("3")} },
			events: map[string]string{"FailedScheduling": "Failed to schedule pod, all available instance types exceed limits for nodepool, NodePool=POOL"},
			want:   "no node can be created for it: nodepool POOL: all instance types exceed its limit: cpu: 0 of 3 used"},
		"existing_node": {events: map[string]string{"Nominated": "Pod should schedule on: node/worker-1"}, want: "Karpenter expects it on node worker-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			pool := w.Pool(w.Class(), func(p *karpv1.NodePool) {
				if test.pool != nil {
					test.pool(p)
				}
			})
			pod := w.PendingPod("web", "2", func(p *corev1.Pod) {
				if test.pod != nil {
					test.pod(p)
				}
			})
			for reason, message := range test.events {
				createEvent(w, pod, "Pod", 1, corev1.EventTypeWarning, reason, strings.ReplaceAll(message, "POOL", pool.Name))
			}
			verdict, _, _ := strings.Cut(explained(w, "pod/web"), "\n")
			w.Expect(verdict).To(Equal("pod " + w.Name + "/web is waiting: " + strings.ReplaceAll(test.want, "POOL", pool.Name)))
		})
	}
}

// The last decision of Karpenter counts, and a NodePool without a problem of its own may create
// a node.
func TestExplainPodLastDecision(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	w.Pool(class)
	pod := w.PendingPod("web", "2")
	createEvent(w, pod, "Pod", 1, corev1.EventTypeNormal, "Nominated", "Pod should schedule on: node/worker-1")
	createEvent(w, pod, "Pod", 5, corev1.EventTypeWarning, "NoHostFits", "No node can be created for this pod: no host fits")
	const refusal = "/web is waiting: No node can be created for this pod: no host fits"
	w.Expect(explained(w, "pod/web")).To(HavePrefix("pod " + w.Name + refusal + "\n"))

	limited := w.Pool(class, func(p *karpv1.NodePool) {
		p.Name = w.Named("limited")
		p.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("8")}
	})
	setPoolStatus(w, limited, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8")})
	w.Expect(explained(w, "pod/web")).To(HavePrefix("pod " + w.Name + refusal + "; nodepool " + limited.Name + ": its limit is reached: cpu: 8 of 8 used"))
}

func TestExplainClaimsAndNodes(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named("worker")}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID}}
	w.Create(node)
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		claim.StatusConditions().SetTrue(condition)
	}
	claim.Status.NodeName = node.Name
	w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
	object := fmt.Sprintf("nodeclaim %s, VM %d on host pve1 of region region-1\n", claim.Name, w.Intent(claim).VMID)
	w.Expect(explained(w, "nodeclaim/"+claim.Name)).To(HavePrefix("nodeclaim " + claim.Name + " is ready, with node " + node.Name + "\n" + object + "launch timeline\n"))
	w.Expect(explained(w, "node/"+node.Name)).To(HavePrefix("node " + node.Name + " belongs to nodeclaim " + claim.Name + ", which is ready, with node " + node.Name + "\n" +
		"node " + node.Name + "\n  Ready is Unknown: the kubelet has not reported its status\n" + object + "launch timeline\n"))
	manual := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named("manual")}}
	w.Create(manual)
	w.Expect(explained(w, "node/"+manual.Name)).To(HavePrefix("node " + manual.Name + ` has no NodeClaim: no NodeClaim has its provider ID ""` + "\n"))
	claim = testenv.Reload(w, claim)
	claim.Annotations[v1alpha1.AnnotationHost] = "pve2"
	w.Expect(w.Kube.Update(t.Context(), claim)).To(Succeed())
	w.Expect(explained(w, "nodeclaim/"+claim.Name)).To(ContainSubstring(" on host pve2 of region region-1\n"), "after a migration")
	out, err := runIn(w, "explain", "node", node.Name)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(out).To(Equal(explained(w, "node/"+node.Name)), "kind and name as two arguments")
	for _, argument := range []string{"pod", "pod/", "pod/web/a", "deployment/web"} {
		_, err := runIn(w, "explain", argument)
		w.Expect(err).To(MatchError(fmt.Sprintf("%q is not one of pod/NAME, nodeclaim/NAME, node/NAME, nodepool/NAME, nodeclass/NAME", argument)))
	}
}

// The events of a deleted NodeClaim contain why it was deleted; those of other NodeClaims,
// which one replaced it.
func TestExplainDeletedClaim(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	named := func(name string) *karpv1.NodeClaim {
		return &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: w.Named(name), UID: types.UID(w.Named(name))}}
	}
	drifted, refused, gone := named("drifted"), named("refused"), named("gone")
	createEvent(w, named("earlier"), "NodeClaim", 1, corev1.EventTypeNormal, "DisruptionLaunching", "Launching NodeClaim: Drifted")
	createEvent(w, named("replacement"), "NodeClaim", 5, corev1.EventTypeNormal, "DisruptionLaunching", "Launching NodeClaim: Drifted")
	createEvent(w, named("other"), "NodeClaim", 6, corev1.EventTypeNormal, "DisruptionLaunching", "Launching NodeClaim: Underutilized")
	createEvent(w, drifted, "NodeClaim", 2, corev1.EventTypeWarning, "NodeClassDrift", "VM template changed")
	createEvent(w, drifted, "NodeClaim", 7, corev1.EventTypeNormal, "DisruptionTerminating", "Disrupting NodeClaim: Drifted")
	createEvent(w, named("later"), "NodeClaim", 9, corev1.EventTypeNormal, "DisruptionLaunching", "Launching NodeClaim: Drifted")
	createEvent(w, refused, "NodeClaim", 2, corev1.EventTypeWarning, "InsufficientCapacityError", "NodeClaim refused event: no host fits")
	createEvent(w, gone, "NodeClaim", 2, corev1.EventTypeNormal, "VMLaunched", "launched VM 100")

	w.Expect(explained(w, "nodeclaim/"+drifted.Name)).To(Equal("nodeclaim " + drifted.Name + " was deleted: Disrupting NodeClaim: Drifted; it was replaced by nodeclaim " + w.Named("replacement") + "\n" +
		"nodeclaim " + drifted.Name + "\n" +
		"  12:02:00 UTC NodeClassDrift: VM template changed\n" +
		"  12:07:00 UTC DisruptionTerminating: Disrupting NodeClaim: Drifted\n"))
	w.Expect(explained(w, "nodeclaim/"+refused.Name)).To(HavePrefix("nodeclaim " + refused.Name + " was deleted: NodeClaim refused event: no host fits\n"))
	w.Expect(explained(w, "nodeclaim/"+gone.Name)).To(HavePrefix("nodeclaim " + gone.Name + " was deleted; no event contains the reason: a user or another controller deleted it, or it expired\n"))
	_, err := runIn(w, "explain", "nodeclaim/"+w.Named("absent"))
	w.Expect(err).To(MatchError("NodeClaim " + w.Named("absent") + " does not exist, and no event of it is stored (Kubernetes deletes events after an hour by default)"))
}
