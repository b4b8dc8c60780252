// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// plannedAt is the time of the intent.
var plannedAt = time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)

func afterPlan(seconds int) metav1.Time {
	return metav1.NewTime(plannedAt.Add(time.Duration(seconds) * time.Second))
}

// launchedEvents are the events of a claim whose VM was started.
func launchedEvents(claim *karpv1.NodeClaim) []corev1.Event {
	return []corev1.Event{{InvolvedObject: corev1.ObjectReference{UID: claim.UID}, Reason: v1alpha1.EventVMLaunched, LastTimestamp: afterPlan(4)}}
}

func claimInLaunch(changes ...func(*karpv1.NodeClaim, *instance.Intent)) *karpv1.NodeClaim {
	claim := testenv.NewNodeClaim("default-abc", "default", "default")
	claim.CreationTimestamp = afterPlan(0)
	claim.Labels = map[string]string{corev1.LabelTopologyZone: "pve1"}
	in := instance.Intent{Region: "home", Host: "pve1", VMID: 20717, Storage: "local-lvm", Time: plannedAt}
	for _, change := range changes {
		change(claim, &in)
	}
	testenv.SetStored(claim, &v1alpha1.ProxmoxNodeClass{}, in)
	return claim
}

func nodeInLaunch(ready corev1.ConditionStatus, message string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "default-abc", CreationTimestamp: afterPlan(50)}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, Message: message, LastTransitionTime: afterPlan(60)}}
	return node
}

func TestLaunchTimeline(t *testing.T) {
	t.Parallel()
	registered := func(claim *karpv1.NodeClaim, _ *instance.Intent) {
		claim.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
		claim.StatusConditions().SetUnknownWithReason(karpv1.ConditionTypeInitialized, "StartupTaintsExist", "StartupTaint \"example.com/agent\" still exists")
	}
	initialized := func(claim *karpv1.NodeClaim, _ *instance.Intent) {
		claim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
		for i := range claim.Status.Conditions {
			claim.Status.Conditions[i].LastTransitionTime = afterPlan(200)
		}
	}
	const planned = "waiting for Started: Proxmox clones, configures and starts VM 20717, unless other clones on storage local-lvm run first (--proxmox-clone-slots), " +
		"or an event above names what the launch waits for; check the tasks of the VM on host pve1\n"
	for name, test := range map[string]struct {
		claim   *karpv1.NodeClaim
		started bool
		node    *corev1.Node
		want    string
	}{
		"initialized": {claimInLaunch(initialized), true, nodeInLaunch(corev1.ConditionTrue, ""), `launch timeline
  STEP             COMPONENT   AT      TOOK
  Started          Proxmox     4.0s    4.0s
  NodeRegistered   guest       50s     46s
  NodeReady        cluster     1m0s    10s
  Initialized      cluster     3m20s   2m20s, slowest
`},
		"events_deleted": {claimInLaunch(initialized), false, nodeInLaunch(corev1.ConditionTrue, ""), `launch timeline
  STEP             COMPONENT   AT      TOOK
  NodeRegistered   guest       50s     50s
  NodeReady        cluster     1m0s    10s
  Initialized      cluster     3m20s   2m20s, slowest
`},
		"booting": {claimInLaunch(), true, nil, `launch timeline
  STEP             COMPONENT   AT     TOOK
  Started          Proxmox     4.0s   4.0s, slowest
  NodeRegistered   guest       -      4m56s, waiting
  waiting for NodeRegistered: the guest boots, reads its boot data, starts the kubelet and gets its certificate; on the console of the VM (on its host, pve1: qm terminal 20717), run: cloud-init status --long; journalctl -u kubelet; to see the boot data, run: kubectl proxmox render --nodeclaim default-abc; to see whether the certificate request is approved, run: kubectl get csr; the chart value nodeBootstrap.create approves it automatically
`},
		"planned": {claimInLaunch(), false, nil, `launch timeline
  STEP      COMPONENT   AT   TOOK
  Started   Proxmox     -    5m0s, waiting
  ` + planned},
		"waiting_for_capacity": {claimInLaunch(func(_ *karpv1.NodeClaim, in *instance.Intent) { in.Parked = true }), false, nil,
			"no host has capacity for the VM; to see the free capacity, run: kubectl proxmox hosts\n"},
		"no_network_plugin": {claimInLaunch(), true, nodeInLaunch(corev1.ConditionFalse, "container runtime network not ready:\x1b[2J cni plugin not initialized"),
			"waiting for NodeReady: node default-abc is not Ready: container runtime network not ready: [2J cni plugin not initialized; run: kubectl describe node default-abc\n"},
		"no_provider_ID": {claimInLaunch(), true, nodeInLaunch(corev1.ConditionTrue, ""),
			"waiting for Initialized: Registered is Unknown: object is awaiting reconciliation\n"},
		"startup_taint": {claimInLaunch(registered), true, nodeInLaunch(corev1.ConditionTrue, ""),
			"waiting for Initialized: Initialized is Unknown: StartupTaint \"example.com/agent\" still exists\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			var out bytes.Buffer
			var history []corev1.Event
			if test.started {
				history = launchedEvents(test.claim)
			}
			g.Expect(newLaunchTimeline(test.claim, test.node, history, afterPlan(300).Time).print(&out)).To(Succeed())
			g.Expect(out.String()).To(HaveSuffix(test.want))
			if strings.HasPrefix(test.want, "launch") {
				g.Expect(out.String()).To(Equal(test.want))
			}
		})
	}
}

// The clocks of the user and the controller may differ, and a claim that is deleted waits for
// nothing.
func TestLaunchTimelineWaiting(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	started := claimInLaunch()
	g.Expect(newLaunchTimeline(started, nil, launchedEvents(started), afterPlan(-300).Time).Waiting.Seconds).To(BeZero())
	deleted := claimInLaunch(func(claim *karpv1.NodeClaim, _ *instance.Intent) { claim.DeletionTimestamp = new(afterPlan(60)) })
	g.Expect(newLaunchTimeline(deleted, nil, nil, afterPlan(300).Time).Waiting).To(BeNil())
	adopted := claimInLaunch()
	adopted.Annotations[v1alpha1.AnnotationLaunchedBy] = v1alpha1.LaunchedByAdopted
	g.Expect(newLaunchTimeline(adopted, nil, nil, afterPlan(300).Time)).To(BeNil())
}

// The Node of a claim is found by the UUID of the VM before it has a provider ID.
func TestExplainLaunch(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		claim := w.Launched("a", w.Class())
		createLaunched(w, claim)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
		w.Create(node)
		w.Expect(explained(w, "nodeclaim/a")).To(ContainSubstring("waiting for NodeRegistered: "))
		node.Status.NodeInfo.SystemUUID = strings.ToUpper(string(claim.UID))
		w.Expect(w.Kube.Status().Update(t.Context(), node)).To(Succeed())
		w.Expect(explained(w, "nodeclaim/a")).To(ContainSubstring("waiting for NodeReady: node worker is not Ready: the kubelet has not reported its status"))
		explanation := runJSON[struct{ Launch launchTimeline }](w, "explain", "nodeclaim/a")
		w.Expect(explanation.Launch.Steps).To(ContainElement(And(
			HaveField("Step", instance.PhaseStarted), HaveField("Component", instance.ComponentProxmox), HaveField("AtSeconds", BeNumerically(">", 0)))))
		w.Expect(explanation.Launch.Steps).To(ContainElement(HaveField("Slowest", true)))
		w.Expect(explanation.Launch.Waiting).To(HaveField("Step", instance.PhaseNodeReady))
	})
}

// createLaunched creates the event of a claim whose VM was started two seconds after the plan.
func createLaunched(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	createEvent(w, claim, claim.CreationTimestamp.Add(2*time.Second), corev1.EventTypeNormal, v1alpha1.EventVMLaunched, "launched VM")
}
