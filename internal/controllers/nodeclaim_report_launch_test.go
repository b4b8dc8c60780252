// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// joining is an Env with a claim whose VM was started.
type joining struct {
	*testenv.Env
	claim      *karpv1.NodeClaim
	controller *report.Controller
	registry   *prometheus.Registry
}

// timelineSimulated runs a test with a claim whose VM was started. It polls only when the test does.
func timelineSimulated(t *testing.T, test func(w *joining)) {
	t.Helper()
	testenv.Simulated(t, func(t *testing.T) {
		w := &joining{Env: testenv.New(t, testenv.NoPolling())}
		w.claim = w.Launched("a", w.Class())
		w.restart()
		test(w)
	})
}

// restart replaces the controller.
func (w *joining) restart() {
	w.registry = prometheus.NewRegistry()
	w.controller = newReportController(w.Env, w.Kube, instance.NewMetrics(w.registry))
}

func (w *joining) reconcile() reconcile.Result {
	w.T.Helper()
	return testenv.Reconcile(w.Env, w.controller, w.claim)
}

// requestCertificate does what the kubelet of a Claim's guest does first, and the controller that approves it.
func (w *joining) requestCertificate(node string) {
	w.T.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.Expect(err).NotTo(HaveOccurred())
	content, err := cert.MakeCSR(key, &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, nil, nil)
	w.Expect(err).NotTo(HaveOccurred())
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named("csr-" + node)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Request: content,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	w.Create(request)
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", LastUpdateTime: metav1.Now(),
	}}
	w.Expect(w.Kube.SubResource("approval").Update(w.Context(), request)).To(Succeed())
}

// register creates the Ready Node of the claim and does what core does with it.
func (w *joining) register(name string) *corev1.Node {
	w.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: w.claim.Status.ProviderID}}
	w.Create(node)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	w.Expect(w.Kube.Status().Update(w.Context(), node)).To(Succeed())
	testenv.ModifyStatus(w.Env, w.claim, func(c *karpv1.NodeClaim) {
		c.Status.NodeName = name
		c.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	})
	return node
}

// observations returns how many launches the histogram counted, by step.
func (w *joining) observations() map[string]float64 {
	return testenv.Metric(w.T, w.registry, "karpenter_proxmox_launch_step_duration_seconds")
}

// A launch counts once, when its Node is initialized, with the steps of Proxmox, guest and cluster.
func TestTimeline(t *testing.T) {
	t.Parallel()
	w := &joining{Env: testenv.NewWithAPIServer(t), registry: prometheus.NewRegistry()}
	var cached client.Client
	w.StartManager(func(kube client.Client) testenv.Registrar {
		cached = kube
		return newReportController(w.Env, kube, instance.NewMetrics(w.registry))
	})
	w.claim = w.Launched("a", w.Class())
	w.Sim.ResetRequests()
	w.requestCertificate(w.claim.Name)
	node := w.register(w.claim.Name)
	// The cache must show that the Node is Ready before the claim changes.
	w.Eventually(func() []corev1.NodeCondition {
		w.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
		return node.Status.Conditions
	}).ShouldNot(BeEmpty())
	w.Expect(w.observations()).To(BeEmpty(), "the launch has not ended")
	w.SetTrue(w.claim, karpv1.ConditionTypeInitialized)
	want := map[string]float64{}
	for _, phase := range []instance.Phase{
		instance.PhaseCloning, instance.PhaseCloned, instance.PhaseBootDrive, instance.PhaseConfigured, instance.PhaseStarted,
		instance.PhaseCertificateRequested, instance.PhaseCertificateApproved, instance.PhaseNodeRegistered, instance.PhaseNodeReady, instance.PhaseInitialized,
	} {
		want[string(phase)] = 1
	}
	w.Eventually(w.observations).Should(Equal(want))
	w.Expect(w.Sim.Requests()).NotTo(ContainElement(HaveField("Path", ContainSubstring("/qemu"))), "the polls of the inventory are enough")
}

// A Node with another name than its Claim is found when Karpenter has registered it.
func TestTimelineOfRenamedNode(t *testing.T) {
	timelineSimulated(t, func(w *joining) {
		w.requestCertificate("worker-1")
		w.register("worker-1")
		w.SetTrue(w.claim, karpv1.ConditionTypeInitialized)
		w.Expect(w.reconcile()).To(BeZero())
		w.Expect(w.observations()).To(HaveKeyWithValue("CertificateApproved", 1.0))
	})
}

// A launch is counted once, and only by the process that knows its steps.
func TestTimelineCountedOnce(t *testing.T) {
	timelineSimulated(t, func(w *joining) {
		w.reconcile()
		w.Expect(w.observations()).To(BeEmpty(), "the Node did not join")
		w.register(w.claim.Name)
		w.SetTrue(w.claim, karpv1.ConditionTypeInitialized)
		for range 2 {
			w.Expect(w.reconcile()).To(BeZero())
			w.Expect(w.observations()).To(And(HaveKeyWithValue("Initialized", 1.0), Not(HaveKey("CertificateRequested"))))
		}
		w.Restart(true)
		w.restart()
		w.Expect(w.reconcile()).To(BeZero())
		w.Expect(w.observations()).To(BeEmpty())
	})
}
