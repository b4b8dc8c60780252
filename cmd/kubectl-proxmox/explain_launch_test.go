// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"maps"
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

// Progress of a launch as the controller records it: planned, cloning, started, and with
// what the guest did.
const (
	progressPlanned   = `{"phase":"Planned","timeline":{"Planned":0}}`
	progressCloning   = `{"phase":"Cloning","timeline":{"Cloning":0.2,"Planned":0}}`
	progressStarted   = `{"phase":"Started","timeline":{"BootDriveUploaded":1,"Cloned":2.5,"Cloning":0.2,"Configured":3,"Planned":0,"Started":4}}`
	progressRequested = `{"phase":"CertificateRequested","timeline":{"CertificateRequested":45,"Cloned":2.5,"Planned":0,"Started":4}}`
	progressApproved  = `{"phase":"CertificateApproved","timeline":{"CertificateApproved":46,"CertificateRequested":45,"Cloned":2.5,"Planned":0,"Started":4}}`
	progressComplete  = `{"phase":"Initialized","timeline":{"BootDriveUploaded":1,"CertificateApproved":46,"CertificateRequested":45,"Cloned":2.5,"Cloning":0.2,"Configured":3,"Initialized":200,"NodeReady":198,"NodeRegistered":50,"Planned":0,"Started":4}}`
)

func claimInLaunch(progress string, changes ...func(*karpv1.NodeClaim, *instance.Intent)) *karpv1.NodeClaim {
	claim := testenv.NewNodeClaim("default-abc", "default", "default")
	claim.CreationTimestamp = afterPlan(0)
	claim.Labels = map[string]string{corev1.LabelTopologyZone: "pve1"}
	claim.Annotations = map[string]string{v1alpha1.AnnotationLaunchProgress: progress}
	if strings.Contains(progress, "Started") {
		claim.Annotations[v1alpha1.AnnotationLaunchCompleted] = afterPlan(4).Format(time.RFC3339)
	}
	in := instance.Intent{Region: "home", Host: "pve1", VMID: 20717, Storage: "local-lvm", Time: plannedAt}
	for _, change := range changes {
		change(claim, &in)
	}
	before := claim.Annotations
	testenv.SetStored(claim, &v1alpha1.ProxmoxNodeClass{}, in)
	maps.Copy(claim.Annotations, before)
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
	for name, test := range map[string]struct {
		claim *karpv1.NodeClaim
		node  *corev1.Node
		want  string
	}{
		"initialized": {claimInLaunch(progressComplete), nodeInLaunch(corev1.ConditionTrue, ""), `launch timeline
  STEP                   COMPONENT   AT      TOOK
  Cloning                Proxmox     0.2s    0.2s
  BootDriveUploaded      Proxmox     1.0s    1.0s
  Cloned                 Proxmox     2.5s    2.3s
  Configured             Proxmox     3.0s    0.5s
  Started                Proxmox     4.0s    1.0s
  CertificateRequested   guest       45s     41s
  CertificateApproved    cluster     46s     1.0s
  NodeRegistered         guest       50s     4.0s
  NodeReady              cluster     3m18s   2m28s, slowest
  Initialized            cluster     3m20s   2.0s
`},
		"booting": {claimInLaunch(progressStarted), nil, `launch timeline
  STEP                COMPONENT   AT     TOOK
  Cloning             Proxmox     0.2s   0.2s
  BootDriveUploaded   Proxmox     1.0s   1.0s
  Cloned              Proxmox     2.5s   2.3s, slowest
  Configured          Proxmox     3.0s   0.5s
  Started             Proxmox     4.0s   1.0s
  NodeRegistered      guest       -      4m56s, waiting
  waiting for NodeRegistered: the guest boots, reads its boot data and starts the kubelet; on the console of the VM (on host pve1: qm terminal 20717), run: cloud-init status --long; journalctl -u kubelet; to see the boot data, run: kubectl proxmox render --nodeclaim default-abc
`},
		"planned": {claimInLaunch(progressPlanned), nil, `launch timeline
  STEP      COMPONENT   AT   TOOK
  Cloning   Proxmox     -    5m0s, waiting
  waiting for Cloning: the clone has not started, because other clones on storage local-lvm run first (--proxmox-clone-slots) or Proxmox does not accept it, or a later step waits; check the events above, and the tasks of VM 20717 on host pve1
`},
		"waiting_for_capacity": {claimInLaunch(progressPlanned, func(_ *karpv1.NodeClaim, in *instance.Intent) { in.Parked = true }), nil,
			"no host has capacity for the VM; to see the free capacity, run: kubectl proxmox hosts\n"},
		"host_asleep": {claimInLaunch(`{"phase":"HostWaking","timeline":{"HostWaking":0.1,"Planned":0}}`), nil,
			"waiting for HostAwake: host pve1 was shut down to save energy and is being woken; to see its state, run: kubectl proxmox power\n"},
		"host_awake": {claimInLaunch(`{"phase":"HostAwake","timeline":{"HostAwake":90,"HostWaking":0.1,"Planned":0}}`), nil,
			"or Proxmox does not accept it, or a later step waits; check the events above, and the tasks of VM 20717 on host pve1\n"},
		"cloning": {claimInLaunch(progressCloning), nil, "waiting for Started: Proxmox clones, configures and starts VM 20717; check its tasks on host pve1\n"},
		"certificate_not_approved": {claimInLaunch(progressRequested), nil,
			"waiting for CertificateApproved: the certificate request of the kubelet is not approved; run: kubectl get csr; the permission for automatic approval is created by the chart value nodeBootstrap.create\n"},
		"kubelet_does_not_register": {claimInLaunch(progressApproved), nil,
			"waiting for NodeRegistered: the kubelet has its certificate and has not registered its Node; on the console of the VM (on host pve1: qm terminal 20717), run: journalctl -u kubelet\n"},
		"migrated": {claimInLaunch(progressApproved, func(claim *karpv1.NodeClaim, _ *instance.Intent) { claim.Annotations[v1alpha1.AnnotationHost] = "pve2" }), nil,
			"on the console of the VM (on host pve2: qm terminal 20717), run: journalctl -u kubelet\n"},
		"no_network_plugin": {claimInLaunch(progressApproved), nodeInLaunch(corev1.ConditionFalse, "container runtime network not ready:\x1b[2J cni plugin not initialized"),
			"waiting for NodeReady: node default-abc is not Ready: container runtime network not ready: [2J cni plugin not initialized; run: kubectl describe node default-abc\n"},
		"no_provider_ID": {claimInLaunch(progressApproved), nodeInLaunch(corev1.ConditionTrue, ""),
			"waiting for Initialized: Registered is Unknown: object is awaiting reconciliation\n"},
		"startup_taint": {claimInLaunch(progressApproved, registered), nodeInLaunch(corev1.ConditionTrue, ""),
			"waiting for Initialized: Initialized is Unknown: StartupTaint \"example.com/agent\" still exists\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			var out bytes.Buffer
			g.Expect(newLaunchTimeline(test.claim, test.node, afterPlan(300).Time).print(&out)).To(Succeed())
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
	g.Expect(newLaunchTimeline(claimInLaunch(progressStarted), nil, afterPlan(-300).Time).Waiting.Seconds).To(BeZero())
	deleted := claimInLaunch(progressStarted, func(claim *karpv1.NodeClaim, _ *instance.Intent) { claim.DeletionTimestamp = new(afterPlan(60)) })
	g.Expect(newLaunchTimeline(deleted, nil, afterPlan(300).Time).Waiting).To(BeNil())
	adopted := claimInLaunch(progressStarted, func(claim *karpv1.NodeClaim, _ *instance.Intent) {
		delete(claim.Annotations, v1alpha1.AnnotationLaunchProgress)
	})
	g.Expect(newLaunchTimeline(adopted, nil, afterPlan(300).Time)).To(BeNil())
}

// The Node of a claim is found by the UUID of the VM before it has a provider ID.
func TestExplainLaunch(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t)
		claim := w.Launched("a", w.Class())
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
