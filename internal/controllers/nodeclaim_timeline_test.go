// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/timeline"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// joining is an Env with a claim whose VM was started.
type joining struct {
	*testenv.Env
	claim      *karpv1.NodeClaim
	controller *timeline.Controller
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
	w.controller = timeline.NewController(w.Kube, w.Clock, instance.NewMetrics(w.registry))
}

func (w *joining) reconcile() reconcile.Result {
	w.T.Helper()
	return testenv.Reconcile(w.Env, w.controller, w.claim)
}

// requestCertificate does what the kubelet of a Claim's guest does first.
func (w *joining) requestCertificate(node string) *certificatesv1.CertificateSigningRequest {
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
	return request
}

func (w *joining) approve(request *certificatesv1.CertificateSigningRequest) {
	w.T.Helper()
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", LastUpdateTime: metav1.Now(),
	}}
	w.Expect(w.Kube.SubResource("approval").Update(w.Context(), request)).To(Succeed())
}

// register creates the Node of the claim and does what core does with it.
func (w *joining) register(name string) *corev1.Node {
	w.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: w.claim.Status.ProviderID}}
	w.Create(node)
	testenv.ModifyStatus(w.Env, w.claim, func(c *karpv1.NodeClaim) {
		c.Status.NodeName = name
		c.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	})
	return node
}

func (w *joining) markReady(node *corev1.Node) {
	w.T.Helper()
	testenv.ModifyStatus(w.Env, node, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	})
}

// initialize does what core does when the Node is Ready.
func (w *joining) initialize() {
	w.T.Helper()
	testenv.ModifyStatus(w.Env, w.claim, func(c *karpv1.NodeClaim) { c.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized) })
}

// join does all of a guest's steps after it requested a certificate.
func (w *joining) join() {
	w.T.Helper()
	w.markReady(w.register(w.claim.Name))
	w.initialize()
}

// phase returns the last step that was recorded.
func (w *joining) phase() instance.Phase { return instance.ReadProgress(w.Stored(w.claim)).Phase }

func (w *joining) hasReached(phase instance.Phase) bool {
	progress := instance.ReadProgress(w.Stored(w.claim))
	return progress.HasReached(phase)
}

// observations returns how many launches the histogram counted, by step.
func (w *joining) observations() map[string]float64 {
	return testenv.Metric(w.T, w.registry, "karpenter_proxmox_launch_step_duration_seconds")
}

// The steps of a slow guest are recorded one by one, and the launch counts once.
func TestTimeline(t *testing.T) {
	t.Parallel()
	w := &joining{Env: testenv.NewWithAPIServer(t), registry: prometheus.NewRegistry()}
	var cached client.Client
	w.StartManager(func(kube client.Client) testenv.Registrar {
		cached = kube
		return timeline.NewController(kube, w.Clock, instance.NewMetrics(w.registry))
	})
	w.claim = w.Launched("a", w.Class())
	w.Clock.Advance(time.Minute)
	w.Sim.ResetRequests()

	request := w.requestCertificate(w.claim.Name)
	w.Eventually(w.phase).Should(Equal(instance.PhaseCertificateRequested))
	w.approve(request)
	w.Eventually(w.phase).Should(Equal(instance.PhaseCertificateApproved))
	node := w.register(w.claim.Name)
	w.Eventually(w.phase).Should(Equal(instance.PhaseNodeRegistered))
	w.Expect(w.observations()).To(BeEmpty(), "the launch has not ended")
	w.markReady(node)
	// The cache must show that the Node is Ready before the claim changes.
	w.Eventually(func() []corev1.NodeCondition {
		w.Expect(cached.Get(t.Context(), client.ObjectKeyFromObject(node), node)).To(Succeed())
		return node.Status.Conditions
	}).ShouldNot(BeEmpty())
	w.initialize()
	w.Eventually(w.phase).Should(Equal(instance.PhaseInitialized))

	w.Expect(w.hasReached(instance.PhaseNodeReady)).To(BeTrue())
	w.Expect(w.hasReached(instance.PhaseCloned)).To(BeTrue(), "what Proxmox did is kept")
	progress, want := instance.ReadProgress(w.Stored(w.claim)), map[string]float64{}
	for _, step := range progress.Steps() {
		want[string(step.Phase)] = 1
	}
	w.Expect(want).To(HaveLen(10))
	w.Eventually(w.observations).Should(Equal(want))
	w.Expect(w.Sim.Requests()).NotTo(ContainElement(HaveField("Path", ContainSubstring("/qemu"))), "the polls of the inventory are enough")
}

// The timeline of a guest that joins fast is recorded with one write, even if the cache is old.
func TestTimelineOfFastGuest(t *testing.T) {
	timelineSimulated(t, func(w *joining) {
		w.approve(w.requestCertificate(w.claim.Name))
		w.Expect(w.reconcile().RequeueAfter).To(BeNumerically("~", 10*time.Second, 5*time.Second), "a guest that hangs is recorded then")
		w.Expect(w.phase()).To(Equal(instance.PhaseStarted))

		w.join()
		cached := w.Stored(w.claim)
		w.Annotate(w.claim, map[string]string{"example.com/other": "change"})
		w.Expect(w.controller.Reconcile(w.Context(), cached)).To(BeZero())
		w.Expect(w.phase()).To(Equal(instance.PhaseInitialized))
		w.Expect(w.hasReached(instance.PhaseCertificateApproved)).To(BeTrue())
	})
}

// A Node with another name than its Claim is found when Karpenter has registered it.
func TestTimelineOfRenamedNode(t *testing.T) {
	timelineSimulated(t, func(w *joining) {
		w.approve(w.requestCertificate("worker-1"))
		w.Expect(w.reconcile()).To(BeZero())
		w.Expect(w.phase()).To(Equal(instance.PhaseStarted))
		w.register("worker-1")
		w.Clock.Advance(time.Minute)
		w.Expect(w.reconcile()).To(BeZero())
		w.Expect(w.phase()).To(Equal(instance.PhaseNodeRegistered))
		w.Expect(w.hasReached(instance.PhaseCertificateApproved)).To(BeTrue())
	})
}

// The annotation shows whether a launch was counted, so neither a restarted controller nor
// one with an old cache counts it again.
func TestTimelineCountedOnce(t *testing.T) {
	timelineSimulated(t, func(w *joining) {
		w.join()
		cached := w.Stored(w.claim)
		for range 2 { // the controller knows what it wrote
			w.Expect(w.controller.Reconcile(w.Context(), cached.DeepCopy())).To(BeZero())
			w.Expect(w.observations()).To(And(HaveKeyWithValue("Initialized", 1.0), Not(HaveKey("CertificateRequested"))))
		}
		recorded := w.Stored(w.claim).Annotations[v1alpha1.AnnotationLaunchProgress]

		w.Clock.Advance(time.Minute)
		w.restart()
		w.Expect(w.controller.Reconcile(w.Context(), cached)).NotTo(BeZero(), "the cache is old")
		w.Expect(w.reconcile()).To(BeZero())
		w.Expect(w.observations()).To(BeEmpty())
		w.Expect(w.Stored(w.claim).Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationLaunchProgress, recorded))
	})
}

// A controller that was stopped during the launch records what it missed, unless the
// certificate requests may already be deleted.
func TestTimelineAfterRestart(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stopped time.Duration
		want    instance.Phase
	}{
		"minutes": {10 * time.Minute, instance.PhaseInitialized},
		"hours":   {2 * time.Hour, instance.PhaseStarted},
	} {
		t.Run(name, func(t *testing.T) {
			timelineSimulated(t, func(w *joining) {
				w.approve(w.requestCertificate(w.claim.Name))
				w.join()
				w.Clock.Advance(test.stopped)
				w.Expect(w.reconcile()).To(BeZero())
				w.Expect(w.phase()).To(Equal(test.want))
				w.Expect(w.hasReached(instance.PhaseCertificateApproved)).To(Equal(test.want == instance.PhaseInitialized))
			})
		})
	}
}

// Claims without a launch of this controller, and steps that are recorded, cause no write.
func TestTimelineNoWrite(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*joining){
		"nothing_new": func(*joining) {},
		"launch_in_progress": func(w *joining) {
			w.register(w.claim.Name)
			delete(w.claim.Annotations, v1alpha1.AnnotationLaunchCompleted)
		},
		"adopted": func(w *joining) {
			w.join()
			delete(w.claim.Annotations, v1alpha1.AnnotationLaunchProgress)
		},
		"deleting": func(w *joining) {
			w.register(w.claim.Name)
			w.claim.DeletionTimestamp = new(metav1.Now())
		},
	} {
		t.Run(name, func(t *testing.T) {
			timelineSimulated(t, func(w *joining) {
				change(w)
				version := w.Stored(w.claim).ResourceVersion
				w.Expect(w.controller.Reconcile(w.Context(), w.claim.DeepCopy())).To(BeZero())
				w.Expect(w.Stored(w.claim).ResourceVersion).To(Equal(version))
			})
		})
	}
}
