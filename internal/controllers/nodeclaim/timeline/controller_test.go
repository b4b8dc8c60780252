// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package timeline_test

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
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/timeline"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// requestCertificate does what the kubelet of a Claim's guest does first.
func requestCertificate(w *testenv.Env, node string) *certificatesv1.CertificateSigningRequest {
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

func approve(w *testenv.Env, request *certificatesv1.CertificateSigningRequest) {
	w.T.Helper()
	request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved",
	}}
	w.Expect(w.Kube.SubResource("approval").Update(w.T.Context(), request)).To(Succeed())
}

// register creates the Node of a Claim and does what core does with it.
func register(w *testenv.Env, claim *karpv1.NodeClaim, name string) *corev1.Node {
	w.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID}}
	w.Create(node)
	modifyStatus(w, claim, func(c *karpv1.NodeClaim) {
		c.Status.NodeName = name
		c.StatusConditions().SetTrue(karpv1.ConditionTypeRegistered)
	})
	return node
}

// initialize marks the Node as Ready and does what core does then. The controller reads Nodes from
// the given reader, whose cache must show that the Node is Ready before the claim changes.
func initialize(w *testenv.Env, claim *karpv1.NodeClaim, node *corev1.Node, reader client.Reader) {
	w.T.Helper()
	modifyStatus(w, node, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	})
	w.Eventually(func() []corev1.NodeCondition {
		read := &corev1.Node{}
		w.Expect(reader.Get(w.T.Context(), client.ObjectKeyFromObject(node), read)).To(Succeed())
		return read.Status.Conditions
	}).ShouldNot(BeEmpty())
	modifyStatus(w, claim, func(c *karpv1.NodeClaim) { c.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized) })
}

// modifyStatus patches a status, because the controller writes to the Claim.
func modifyStatus[T client.Object](w *testenv.Env, object T, change func(T)) {
	w.T.Helper()
	stored, ok := testenv.Reload(w, object).DeepCopyObject().(client.Object)
	w.Expect(ok).To(BeTrue())
	change(object)
	w.Expect(w.Kube.Status().Patch(w.T.Context(), object, client.MergeFrom(stored))).To(Succeed())
}

func phase(w *testenv.Env, claim *karpv1.NodeClaim) instance.Phase {
	return instance.ReadProgress(w.Stored(claim)).Phase
}

// observations returns how many launches the histogram counted, by step.
func observations(w *testenv.Env, registry *prometheus.Registry) map[string]uint64 {
	w.T.Helper()
	families, err := registry.Gather()
	w.Expect(err).NotTo(HaveOccurred())
	counts := map[string]uint64{}
	for _, family := range families {
		if family.GetName() == "karpenter_proxmox_launch_step_duration_seconds" {
			for _, metric := range family.GetMetric() {
				counts[metric.GetLabel()[0].GetValue()] = metric.GetHistogram().GetSampleCount()
			}
		}
	}
	return counts
}

// The steps of a slow guest are recorded one by one, and the launch counts once.
func TestTimeline(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	metrics := instance.NewMetrics(registry)
	w := testenv.New(t)
	var cached client.Client
	w.StartManager(func(kube client.Client) testenv.Registrar {
		cached = kube
		return timeline.NewController(kube, w.Clock, metrics)
	})
	claim := w.Launched("a", w.Class())
	reached := func() instance.Phase { return phase(w, claim) }
	w.Clock.Advance(time.Minute)
	w.Sim.ResetRequests()

	request := requestCertificate(w, claim.Name)
	w.Eventually(reached).Should(Equal(instance.PhaseCertificateRequested))
	approve(w, request)
	w.Eventually(reached).Should(Equal(instance.PhaseCertificateApproved))
	node := register(w, claim, claim.Name)
	w.Eventually(reached).Should(Equal(instance.PhaseNodeRegistered))
	w.Expect(observations(w, registry)).To(BeEmpty(), "the launch has not ended")
	initialize(w, claim, node, cached)
	w.Eventually(reached).Should(Equal(instance.PhaseInitialized))

	progress := instance.ReadProgress(w.Stored(claim))
	w.Expect(progress.HasReached(instance.PhaseNodeReady)).To(BeTrue())
	w.Expect(progress.HasReached(instance.PhaseCloned)).To(BeTrue(), "what Proxmox did is kept")
	want := map[string]uint64{}
	for _, step := range progress.Steps() {
		want[string(step.Phase)] = 1
	}
	w.Expect(want).To(HaveLen(10))
	w.Eventually(func() map[string]uint64 { return observations(w, registry) }).Should(Equal(want))
	for _, r := range w.Sim.Requests() {
		w.Expect(r.Path).NotTo(ContainSubstring("/qemu"), "the polls of the inventory are enough")
	}
}

// The timeline of a guest that joins fast is recorded with one write, even if the cache is old.
func TestTimelineOfFastGuest(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	c := timeline.NewController(w.Kube, testclock.NewFakePassiveClock(w.Clock.Now()), instance.Metrics{})
	approve(w, requestCertificate(w, claim.Name))
	result, err := c.Reconcile(t.Context(), w.Stored(claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically("~", 10*time.Second, 5*time.Second), "a guest that hangs is recorded then")
	w.Expect(phase(w, claim)).To(Equal(instance.PhaseStarted))

	initialize(w, claim, register(w, claim, claim.Name), w.Kube)
	cached := w.Stored(claim)
	w.Expect(instance.Annotate(t.Context(), w.Kube, claim, map[string]string{"example.com/other": "change"})).To(Succeed())
	result, err = c.Reconcile(t.Context(), cached)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeZero())
	progress := instance.ReadProgress(w.Stored(claim))
	w.Expect(progress.Phase).To(Equal(instance.PhaseInitialized))
	w.Expect(progress.HasReached(instance.PhaseCertificateApproved)).To(BeTrue())
}

// A Node with another name than its Claim is found when Karpenter has registered it.
func TestTimelineOfRenamedNode(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	c := timeline.NewController(w.Kube, w.Clock, instance.Metrics{})
	approve(w, requestCertificate(w, w.Named("worker-1")))
	_, err := c.Reconcile(t.Context(), w.Stored(claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(phase(w, claim)).To(Equal(instance.PhaseStarted))
	register(w, claim, w.Named("worker-1"))
	w.Clock.Advance(time.Minute)
	_, err = c.Reconcile(t.Context(), w.Stored(claim))
	w.Expect(err).NotTo(HaveOccurred())
	progress := instance.ReadProgress(w.Stored(claim))
	w.Expect(progress.Phase).To(Equal(instance.PhaseNodeRegistered))
	w.Expect(progress.HasReached(instance.PhaseCertificateApproved)).To(BeTrue())
}

// The annotation shows whether a launch was counted, so neither a restarted controller nor
// one with an old cache counts it again.
func TestTimelineCountedOnce(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	initialize(w, claim, register(w, claim, claim.Name), w.Kube)
	cached := w.Stored(claim)

	before := prometheus.NewRegistry()
	c := timeline.NewController(w.Kube, w.Clock, instance.NewMetrics(before))
	_, err := c.Reconcile(t.Context(), cached.DeepCopy())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(observations(w, before)).To(And(HaveKeyWithValue("Initialized", uint64(1)), Not(HaveKey("CertificateRequested"))))
	recorded := w.Stored(claim).Annotations[v1alpha1.AnnotationLaunchProgress]

	result, err := c.Reconcile(t.Context(), cached.DeepCopy())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeZero(), "the controller knows what it wrote")
	w.Expect(observations(w, before)).To(HaveKeyWithValue("Initialized", uint64(1)))

	after := prometheus.NewRegistry()
	w.Clock.Advance(time.Minute)
	restarted := timeline.NewController(w.Kube, w.Clock, instance.NewMetrics(after))
	result, err = restarted.Reconcile(t.Context(), cached.DeepCopy())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "the cache is old")
	_, err = restarted.Reconcile(t.Context(), w.Stored(claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(observations(w, after)).To(BeEmpty())
	w.Expect(w.Stored(claim).Annotations[v1alpha1.AnnotationLaunchProgress]).To(Equal(recorded))
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
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			claim := w.Launched("a", w.Class())
			approve(w, requestCertificate(w, claim.Name))
			initialize(w, claim, register(w, claim, claim.Name), w.Kube)
			w.Clock.Advance(test.stopped)
			_, err := timeline.NewController(w.Kube, w.Clock, instance.Metrics{}).Reconcile(t.Context(), w.Stored(claim))
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(phase(w, claim)).To(Equal(test.want))
			if test.want == instance.PhaseInitialized {
				progress := instance.ReadProgress(w.Stored(claim))
				w.Expect(progress.HasReached(instance.PhaseCertificateApproved)).To(BeTrue())
			}
		})
	}
}

// Claims without a launch of this controller, and steps that are recorded, cause no write.
func TestTimelineNoWrite(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*testenv.Env, *karpv1.NodeClaim){
		"nothing_new": func(*testenv.Env, *karpv1.NodeClaim) {},
		"launch_in_progress": func(w *testenv.Env, claim *karpv1.NodeClaim) {
			register(w, claim, claim.Name)
			delete(claim.Annotations, v1alpha1.AnnotationLaunchCompleted)
		},
		"adopted": func(w *testenv.Env, claim *karpv1.NodeClaim) {
			initialize(w, claim, register(w, claim, claim.Name), w.Kube)
			delete(claim.Annotations, v1alpha1.AnnotationLaunchProgress)
		},
		"deleting": func(w *testenv.Env, claim *karpv1.NodeClaim) {
			register(w, claim, claim.Name)
			claim.DeletionTimestamp = new(metav1.Now())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			claim := w.Launched("a", w.Class())
			change(w, claim)
			version := w.Stored(claim).ResourceVersion
			_, err := timeline.NewController(w.Kube, w.Clock, instance.Metrics{}).Reconcile(t.Context(), claim.DeepCopy())
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(w.Stored(claim).ResourceVersion).To(Equal(version))
		})
	}
}
