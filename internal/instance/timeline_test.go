// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// planned is the time of the intent.
var planned = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// after returns a time of Kubernetes: whole seconds after the intent.
func after(seconds int) metav1.Time {
	return metav1.NewTime(planned.Add(time.Duration(seconds) * time.Second))
}

// launchObjects are the objects of a launch after the VM was started.
type launchObjects struct {
	claim    *karpv1.NodeClaim
	progress Progress
	Observed
}

func (o *launchObjects) request(created int, approved ...int) {
	request := certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: after(created)}}
	for _, at := range approved {
		request.Status.Conditions = append(request.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: after(at),
		})
	}
	o.Requests = append(o.Requests, request)
}

func (o *launchObjects) node(created int, ready corev1.ConditionStatus, since int) {
	o.Node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: after(created)}}
	o.Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastTransitionTime: after(since)}}
}

func (o *launchObjects) initialized() {
	o.claim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
	for i := range o.claim.Status.Conditions {
		o.claim.Status.Conditions[i].LastTransitionTime = after(61)
	}
}

func TestTimeline(t *testing.T) {
	t.Parallel()
	// What Proxmox did, as the end of each step and how long it took.
	const proxmox = "Cloning 0.2 0.2, BootDriveUploaded 1 1, Cloned 2.5 2.3, Configured 3 0.5, Started 4 1"
	for name, test := range map[string]struct {
		objects func(*launchObjects)
		want    string
	}{
		"event_deleted": {func(o *launchObjects) { o.progress = NewProgress(); o.node(50, corev1.ConditionTrue, 60) },
			"NodeRegistered 50 50, NodeReady 60 10"},
		"certificate_not_approved": {func(o *launchObjects) { o.request(45) }, proxmox + ", CertificateRequested 45 41"},
		"not_ready": {func(o *launchObjects) { o.request(45, 46); o.node(50, corev1.ConditionFalse, 50) },
			proxmox + ", CertificateRequested 45 41, CertificateApproved 46 1, NodeRegistered 50 4"},
		"initialized": {func(o *launchObjects) { o.request(45, 46); o.node(50, corev1.ConditionTrue, 60); o.initialized() },
			proxmox + ", CertificateRequested 45 41, CertificateApproved 46 1, NodeRegistered 50 4, NodeReady 60 10, Initialized 61 1"},
		"two_requests": {func(o *launchObjects) { o.request(48, 49); o.request(45); o.node(50, corev1.ConditionFalse, 50) },
			proxmox + ", CertificateRequested 45 41, CertificateApproved 49 4, NodeRegistered 50 1"},
		"request_of_an_earlier_node": {func(o *launchObjects) { o.request(-900, -899) }, proxmox},
		"Node_deleted":               {func(o *launchObjects) { o.initialized() }, proxmox + ", Initialized 61 57"},
		"after_a_reboot": {func(o *launchObjects) { o.node(50, corev1.ConditionTrue, 500); o.initialized() },
			proxmox + ", NodeRegistered 50 46, NodeReady 61 11, Initialized 61 0"},
		"guest_clock_behind": {func(o *launchObjects) { o.node(50, corev1.ConditionTrue, -7200); o.initialized() },
			proxmox + ", NodeRegistered 50 46, NodeReady 50 0, Initialized 61 11"},
		"guest_clock_ahead": {func(o *launchObjects) { o.node(50, corev1.ConditionTrue, 7200) },
			proxmox + ", NodeRegistered 50 46, NodeReady 600 550"},
		"clock_of_the_API_server_behind": {func(o *launchObjects) {
			o.progress = Progress{PhaseStarted: 64 * time.Second}
			o.claim.CreationTimestamp = after(-60)
			o.request(-15, -14)
			o.node(-10, corev1.ConditionTrue, 60)
			o.initialized()
		}, "Started 64 64, CertificateRequested 64 0, CertificateApproved 64 0, NodeRegistered 64 0, NodeReady 120 56, Initialized 121 1"},
		// Another controller launched the VM.
		"adopted": {func(o *launchObjects) {
			o.claim.Annotations[v1alpha1.AnnotationLaunchedBy] = v1alpha1.LaunchedByAdopted
			o.initialized()
		}, proxmox},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := &launchObjects{claim: newClaim(), progress: Progress{
				PhaseCloning: 200 * time.Millisecond, PhaseBootDrive: time.Second, PhaseCloned: 2500 * time.Millisecond,
				PhaseConfigured: 3 * time.Second, PhaseStarted: 4 * time.Second,
			}}
			o.claim.CreationTimestamp = after(0)
			o.claim.Annotations[v1alpha1.AnnotationLaunchedBy] = v1alpha1.LaunchedByVersion
			test.objects(o)
			for range 2 {
				o.progress.Observe(o.claim, o.claim.CreationTimestamp.Time, o.Observed, after(600).Time)
				NewWithT(t).Expect(timelineText(o.progress)).To(Equal(test.want))
			}
		})
	}
}

func timelineText(p Progress) string {
	var steps []string
	for _, step := range p.Steps() {
		steps = append(steps, fmt.Sprintf("%s %v %v", step.Phase, step.At.Seconds(), step.Took.Round(time.Millisecond).Seconds()))
	}
	return strings.Join(steps, ", ")
}

func TestPhaseComponent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.Expect(PhaseCloned.Component()).To(Equal(ComponentProxmox))
	g.Expect(PhaseCertificateRequested.Component()).To(Equal(ComponentGuest))
	g.Expect(PhaseInitialized.Component()).To(Equal(ComponentCluster))
	g.Expect(Phase("Later").Component()).To(BeEmpty(), "of a newer release")
}

func TestJoiningNode(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	content := func(name string) []byte {
		pem, err := cert.MakeCSR(key, &pkix.Name{CommonName: name}, nil, nil)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		return pem
	}
	const signer, token = certificatesv1.KubeAPIServerClientKubeletSignerName, "system:bootstrap:abcdef"
	for name, test := range map[string]struct {
		signer, user string
		content      []byte
		want         string
	}{
		"join_token":          {signer, token, content("system:node:a"), "a"},
		"service_account":     {signer, "system:serviceaccount:kube-system:joiner", content("system:node:a"), "a"},
		"renewal":             {signer, "system:node:a", content("system:node:a"), ""},
		"serving_certificate": {certificatesv1.KubeletServingSignerName, token, content("system:node:a"), ""},
		"user":                {signer, token, content("alice"), ""},
		"no_PEM":              {signer, token, []byte("x"), ""},
		"no_request":          {signer, token, []byte("-----BEGIN CERTIFICATE REQUEST-----\neA==\n-----END CERTIFICATE REQUEST-----\n"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			request := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: test.signer, Username: test.user, Request: test.content,
			}}
			NewWithT(t).Expect(JoiningNode(request)).To(Equal(test.want))
		})
	}
}
