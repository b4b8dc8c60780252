// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// explained returns the output of explain.
func explained(w *testenv.Env, object string) string {
	w.T.Helper()
	out, err := runIn(w, "explain", object, "-n", w.Name)
	w.Expect(err).NotTo(HaveOccurred())
	return out
}

func TestExplainNominatedPod(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		class := w.Class()
		setPoolStatus(w, w.Pool(class), nil)
		claim := w.Launched("a", class)
		claim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeRegistered, "NodeNotFound", "Node not registered with cluster")
		setConditions(w, claim, karpv1.ConditionTypeLaunched)
		createEvent(w, claim, noon(3), corev1.EventTypeWarning, "NodeNotJoined", "VM 1 has been running,\x1b[2J but no Node joined")
		createEvent(w, claim, noon(4), corev1.EventTypeNormal, "DisruptionBlocked", "is not shown")
		class = testenv.Reload(w, class)
		class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "region-1/pve2", Reason: `bridge "vmbr0" is not on this host`}}
		setConditions(w, class)
		createEvent(w, w.PendingPod("web", "2"), noon(1), corev1.EventTypeNormal, "Nominated", "Pod should schedule on: nodeclaim/a")

		w.Expect(explained(w, "pod/web")).To(Equal(fmt.Sprintf(
			`pod shop/web is waiting: nodeclaim a was created for it and is not ready: Registered is Unknown: Node not registered with cluster
pod shop/web
  12:01:00 UTC Nominated: Pod should schedule on: nodeclaim/a
nodeclaim a, VM %d, launched on host pve1 of region region-1
  Initialized is Unknown: object is awaiting reconciliation
  Registered is Unknown: Node not registered with cluster
  12:03:00 UTC NodeNotJoined: VM 1 has been running, [2J but no Node joined
nodepool pool
proxmoxnodeclass default, usable hosts: 1
  region-1/pve2 is not usable: bridge "vmbr0" is not on this host
`, w.Intent(claim).VMID)))
	})
}

// Conditions that wait for another one are not listed, and hosts with the same reason are in
// one line.
func TestExplainClass(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		class := w.Class()
		w.Expect(explained(w, "pnc/default")).To(Equal("proxmoxnodeclass default is ready\nproxmoxnodeclass default, usable hosts: 1\n"))
		class.StatusConditions().SetUnknownWithReason(v1alpha1.ConditionNetworkReady, v1alpha1.ReasonNotChecked,
			"not checked until condition InstanceTemplateReady is true")
		class.StatusConditions().SetFalse(v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, "no template")
		class.Status.UnusableZones = []v1alpha1.UnusableZone{
			{Zone: "region-1/pve2", Reason: "no template"}, {Zone: "region-1/pve3", Reason: "offline"}, {Zone: "region-1/pve4", Reason: "no template"},
		}
		setConditions(w, class)
		w.Expect(explained(w, "nodeclass/default")).To(HaveSuffix(`
proxmoxnodeclass default, usable hosts: 1
  InstanceTemplateReady is False: no template
  region-1/pve2, region-1/pve4 are not usable: no template
  region-1/pve3 is not usable: offline
`))
	})
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
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		class := w.Class()
		create := func(name string, used corev1.ResourceList, change func(*karpv1.NodePool)) *karpv1.NodePool {
			pool := w.Pool(class, func(p *karpv1.NodePool) { p.Name = name }, change)
			setPoolStatus(w, pool, used)
			return pool
		}
		create("a-tainted", nil, func(p *karpv1.NodePool) {
			p.Spec.Template.Spec.Taints = []corev1.Taint{{Key: "team", Value: "blue", Effect: corev1.TaintEffectNoSchedule}}
		})
		create("b-missing", nil, func(p *karpv1.NodePool) { p.Spec.Template.Spec.NodeClassRef.Name = "absent" })
		create("c-other", nil, func(p *karpv1.NodePool) {
			p.Spec.Template.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
		})
		used := func(cpu string) corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("28Gi")}
		}
		limited := create("d-limited", used("7"), func(p *karpv1.NodePool) {
			p.Spec.Limits = karpv1.Limits{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("64Gi")}
		})
		w.PendingPod("web", "2")

		const absent = "ProxmoxNodeClass absent does not exist; create it, or change spec.template.spec.nodeClassRef of the NodePool"
		w.Expect(explained(w, "pod/web")).To(Equal("pod shop/web is waiting: no node can be created for it: nodepool b-missing: " + absent +
			`; nodepool d-limited: its limit is reached: cpu: 7 of 8 used, the pod requests 2
pod shop/web
nodepool b-missing
nodepool c-other
  not checked: it belongs to another provider, with class EC2NodeClass default of group karpenter.k8s.aws
nodepool d-limited
  limit of cpu: 7 of 8 used
  limit of memory: 28Gi of 64Gi used
proxmoxnodeclass default, usable hosts: 1
`))
		w.Expect(explained(w, "nodepool/b-missing")).To(HavePrefix("nodepool b-missing cannot create nodes: " + absent + "\n"))
		w.Expect(explained(w, "nodepool/c-other")).To(Equal(
			"nodepool c-other belongs to another provider: its class is EC2NodeClass default of group karpenter.k8s.aws\n"))
		w.Expect(explained(w, "nodepool/d-limited")).To(HavePrefix("nodepool d-limited can create nodes\n"))
		setPoolStatus(w, testenv.Reload(w, limited), used("8"))
		w.Expect(explained(w, "nodepool/d-limited")).To(HavePrefix("nodepool d-limited cannot create nodes: its limit is reached: cpu: 8 of 8 used\n"))
	})
}

func TestExplainPod(t *testing.T) {
	t.Parallel()
	limit := func(name, cpu string) func(*karpv1.NodePool) {
		return func(p *karpv1.NodePool) {
			p.Name, p.Spec.Limits = name, karpv1.Limits{corev1.ResourceCPU: resource.MustParse(cpu)}
		}
	}
	for name, test := range map[string]struct {
		pod    func(*corev1.Pod)
		pools  []func(*karpv1.NodePool)
		events []string
		want   string
	}{
		"gated": {
			pod:  func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}} },
			want: "it has scheduling gates: example.com/quota",
		},
		"not_tried": {want: "Karpenter has not tried to schedule it yet"},
		"no_usable_pool": {
			pod: func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "pve9"} },
			pools: []func(*karpv1.NodePool){func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.Requirements = []karpv1.NodeSelectorRequirementWithMinValues{
					{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"pve1", "pve2"}},
				}
			}},
			want: "no NodePool can be used for it: nodepool pool: key topology.kubernetes.io/zone, " +
				"topology.kubernetes.io/zone In [pve9] not in topology.kubernetes.io/zone In [pve1 pve2]",
		},
		"no_host_fits": {
			events: []string{"NoHostFits: No node can be created for this pod: nodepool pool: no host fits", "FailedScheduling: Failed to schedule pod"},
			want:   "No node can be created for this pod: nodepool pool: no host fits",
		},
		"types_exceed_limit": {
			pools:  []func(*karpv1.NodePool){limit("pool", "3")},
			events: []string{"FailedScheduling: Failed to schedule pod, all available instance types exceed limits for nodepool, NodePool=pool"},
			want:   "no node can be created for it: nodepool pool: all instance types exceed its limit: cpu: 0 of 3 used",
		},
		"existing_node": {events: []string{"Nominated: Pod should schedule on: node/worker-1"}, want: "Karpenter expects it on node worker-1"},
		// A NodePool without a problem of its own may create a node.
		"last_decision_and_limit": {
			pools:  []func(*karpv1.NodePool){func(*karpv1.NodePool) {}, limit("limited", "1")},
			events: []string{"Nominated: Pod should schedule on: node/worker-1", "NoHostFits: No node can be created for this pod: no host fits"},
			want:   "No node can be created for this pod: no host fits; nodepool limited: its limit is reached: cpu: 0 of 1 used, the pod requests 2",
		},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := newEnv(t, testenv.NeverPolled())
			class := w.Class()
			if test.pools == nil {
				w.Pool(class)
			}
			for _, change := range test.pools {
				w.Pool(class, change)
			}
			if test.pod == nil {
				test.pod = func(*corev1.Pod) {}
			}
			pod := w.PendingPod("web", "2", test.pod)
			for n, event := range test.events {
				reason, message, _ := strings.Cut(event, ": ")
				createEvent(w, pod, noon(n), corev1.EventTypeWarning, reason, message)
			}
			verdict, _, _ := strings.Cut(explained(w, "pod/web"), "\n")
			w.Expect(verdict).To(Equal("pod shop/web is waiting: " + test.want))
		})
	}
}

func TestExplainClaimsAndNodes(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		claim := w.Launched("a", w.Class())
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID}})
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "manual"}})
		claim.Status.NodeName = "worker"
		setConditions(w, claim, karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized)
		object := fmt.Sprintf("nodeclaim a, VM %d, launched on host pve1 of region region-1\nlaunch timeline\n", w.Intent(claim).VMID)
		w.Expect(explained(w, "nodeclaim/a")).To(HavePrefix("nodeclaim a is ready, with node worker\n" + object))
		w.Expect(explained(w, "node/worker")).To(HavePrefix("node worker belongs to nodeclaim a, which is ready, with node worker\n" +
			"node worker\n  Ready is Unknown: the kubelet has not reported its status\n" + object))
		w.Expect(runIn(w, "explain", "node", "worker")).To(Equal(explained(w, "node/worker")), "kind and name as two arguments")
		w.Expect(explained(w, "node/manual")).To(HavePrefix("node manual has no NodeClaim: no NodeClaim has its provider ID \"\"\n"))
		for _, argument := range []string{"pod", "pod/", "pod/web/a", "deployment/web"} {
			w.Expect(errorOf(runIn(w, "explain", argument))).To(MatchError(fmt.Sprintf(
				"%q is not one of pod/NAME, nodeclaim/NAME, node/NAME, nodepool/NAME, nodeclass/NAME", argument)))
		}
	})
}

// The events of a deleted NodeClaim contain why it was deleted; those of other NodeClaims,
// which one replaced it.
func TestExplainDeletedClaim(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t, testenv.NeverPolled())
		for _, event := range []struct {
			claim                      string
			minute                     int
			eventType, reason, message string
		}{
			{"earlier", 1, corev1.EventTypeNormal, "DisruptionLaunching", "Launching NodeClaim: Drifted"},
			{"replacement", 5, corev1.EventTypeNormal, "DisruptionLaunching", "Launching NodeClaim: Drifted"},
			{"other", 6, corev1.EventTypeNormal, "DisruptionLaunching", "Launching NodeClaim: Underutilized"},
			{"drifted", 2, corev1.EventTypeWarning, "NodeClassDrift", "VM template changed"},
			{"drifted", 7, corev1.EventTypeNormal, "DisruptionTerminating", "Disrupting NodeClaim: Drifted"},
			{"later", 9, corev1.EventTypeNormal, "DisruptionLaunching", "Launching NodeClaim: Drifted"},
			{"refused", 2, corev1.EventTypeWarning, "InsufficientCapacityError", "NodeClaim refused event: no host fits"},
			{"gone", 2, corev1.EventTypeNormal, "VMLaunched", "launched VM 100"},
		} {
			claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: event.claim, UID: types.UID(event.claim)}}
			createEvent(w, claim, noon(event.minute), event.eventType, event.reason, event.message)
		}
		w.Expect(explained(w, "nodeclaim/drifted")).To(Equal(`nodeclaim drifted was deleted: Disrupting NodeClaim: Drifted; it was replaced by nodeclaim replacement
nodeclaim drifted
  12:02:00 UTC NodeClassDrift: VM template changed
  12:07:00 UTC DisruptionTerminating: Disrupting NodeClaim: Drifted
`))
		w.Expect(explained(w, "nodeclaim/refused")).To(HavePrefix("nodeclaim refused was deleted: NodeClaim refused event: no host fits\n"))
		w.Expect(explained(w, "nodeclaim/gone")).To(HavePrefix(
			"nodeclaim gone was deleted; no event contains the reason: a user or another controller deleted it, or it expired\n"))
		w.Expect(errorOf(runIn(w, "explain", "nodeclaim/absent"))).To(MatchError(
			"NodeClaim absent does not exist, and no event of it is stored (Kubernetes deletes events after an hour by default)"))
	})
}
