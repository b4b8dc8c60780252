// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

func TestUp(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	r := up(t, "--audit", "--kubeconfig-out", kubeconfig, "--feature-gates", "InPlacePodVerticalScaling=true", "--server-ip", "192.0.2.7")

	expectVersion(t, r)
	expectCertificateFor(t, r, "192.0.2.7")
	expectPodScheduled(t, r)
	expectNodeJoins(t, r)
	expectOtherGroupRefused(t, r)
	log, err := os.ReadFile(filepath.Join(r.Dir, "logs", "audit.log"))
	must(t, err)
	expectContains(t, string(log), `"kind":"Event"`)

	r.signal(t, syscall.SIGTERM)
	expectEqual(t, r.expectEnd(t), 0)
	r.expectNothingLeft(t)
	expectNoFile(t, r.readyFile)
	expectNoFile(t, r.Dir)
	if want := fmt.Sprintf("export KUBECONFIG=%s\n", kubeconfig); r.stdout.String() != want {
		t.Errorf("standard output is %q; want %q", r.stdout, want)
	}
}

// TestUpConcurrently starts two planes. One ends with its standard input, the other is killed.
func TestUpConcurrently(t *testing.T) {
	t.Parallel()
	stdin, closing := io.Pipe()
	first, second := launch(t, stdin, nil), launch(t, nil, nil)
	t.Cleanup(func() { _ = closing.Close() }) // the process ends only then
	first.awaitReady(t)
	second.awaitReady(t)
	uids := map[string]bool{}
	for _, r := range []*running{first, second} {
		namespace, err := r.client(t).CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
		must(t, err)
		uids[string(namespace.UID)] = true
	}
	if len(uids) != 2 {
		t.Error("both kubeconfigs lead to the same cluster")
	}
	must(t, closing.Close())
	expectEqual(t, first.expectEnd(t), 0)
	first.expectNothingLeft(t)
	second.signal(t, syscall.SIGKILL)
	second.expectNothingLeft(t)
}

func TestUpNamedDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "plane")
	r := up(t, "--dir", dir, "--quiet")

	other := launch(t, nil, nil, "--dir", dir)
	expectEqual(t, other.expectEnd(t), 1)
	expectContains(t, other.stderr.String(), "is in use by another kubeplane")

	r.signal(t, syscall.SIGINT)
	r.expectEnd(t)
	r.expectNothingLeft(t)
	for _, component := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		if info, err := os.Stat(filepath.Join(dir, "logs", component+".log")); err != nil || info.Size() == 0 {
			t.Errorf("the log of %s is missing or empty (%v)", component, err)
		}
	}
	if r.stderr.Len() != 0 {
		t.Errorf("--quiet is not quiet:\n%s", r.stderr)
	}

	up(t, "--dir", dir) // a later plane may use it again
}

// expectVersion: Karpenter's suites skip specs in silence when the server does not know its version.
func expectVersion(t *testing.T, r *running) {
	t.Helper()
	info, err := r.client(t).Discovery().ServerVersion()
	must(t, err)
	version := "v" + info.Major + "." + info.Minor + "."
	if info.Major != "1" || info.Minor == "" || !strings.HasPrefix(info.GitVersion, version) {
		t.Errorf("the server is version %q.%q (%s); want the version of k8s.io/kubernetes", info.Major, info.Minor, info.GitVersion)
	}
}

// expectPodScheduled needs every component: admission wants the service account, the controller manager takes the
// taint off the Node, the scheduler binds.
func expectPodScheduled(t *testing.T, r *running) {
	t.Helper()
	client := r.client(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ready"}}
	node, err := client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastHeartbeatTime: metav1.Now()}}
	node.Status.Capacity = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	node.Status.Allocatable = node.Status.Capacity
	_, err = client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	_, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err)
	eventually(t, readyWithin, "the pod is bound", func() error {
		got, err := pods.Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil && got.Spec.NodeName != node.Name {
			err = fmt.Errorf("the pod is on %q: %v", got.Spec.NodeName, got.Status.Conditions)
		}
		return err
	})
}

// expectCertificateFor reads the certificate that the API server shows.
func expectCertificateFor(t *testing.T, r *running, address string) {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", strings.TrimPrefix(r.Server, "https://"))
	must(t, err)
	defer func() { _ = conn.Close() }()
	secure, ok := conn.(*tls.Conn)
	if !ok {
		t.Fatalf("a TLS dialer gave a %T", conn)
	}
	if err := secure.ConnectionState().PeerCertificates[0].VerifyHostname(address); err != nil {
		t.Error(err)
	}
}

func TestExitWithParent(t *testing.T) {
	t.Parallel()
	// The shell must stay the parent, so it may not exec the plane.
	r := launch(t, nil, []string{"sh", "-c", `"$@" & wait`, "sh"})
	r.awaitReady(t)
	if r.PIDs["kubeplane"] == r.cmd.Process.Pid {
		t.Fatal("the shell has become the plane")
	}
	r.signal(t, syscall.SIGKILL)
	r.expectNothingLeft(t)
	expectNoFile(t, r.Dir)
}

func TestExitWithComponent(t *testing.T) {
	t.Parallel()
	r := up(t)
	must(t, syscall.Kill(r.PIDs["kube-scheduler"], syscall.SIGKILL))
	expectEqual(t, r.expectEnd(t), 1)
	r.expectNothingLeft(t)
	path := filepath.Join(r.Dir, "logs", "kube-scheduler.log")
	expectContains(t, r.stderr.String(), "kube-scheduler ended by itself (signal: killed); the end of "+path+":\n")
	log, err := os.ReadFile(path)
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	expectContains(t, r.stderr.String(), lines[len(lines)-1])
	expectNoFile(t, r.readyFile)
	if _, err := os.Stat(filepath.Join(r.Dir, "logs", "kube-apiserver.log")); err != nil {
		t.Errorf("the logs that would explain it are gone: %v", err)
	}
}

func TestUpComponentFails(t *testing.T) {
	t.Parallel()
	r := launch(t, nil, nil, "--runtime-config", "no/such=true")
	select {
	case <-r.done:
	case <-time.After(readyWithin):
		t.Fatal("kubeplane waits for an API server that has ended")
	}
	expectEqual(t, r.cmd.ProcessState.ExitCode(), 1)
	expectContains(t, r.stderr.String(), "kube-apiserver ended by itself (exit status 1)")
	expectContains(t, r.stderr.String(), "unknown api groups no") // its own words
}

// withToken makes a join token of the given group, as the product does, and answers a client that has nothing else.
func withToken(t *testing.T, r *running, id, group string) kubernetes.Interface {
	t.Helper()
	const secret = "0123456789abcdef"
	_, err := r.client(t).CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id":                       id,
			"token-secret":                   secret,
			"usage-bootstrap-authentication": "true",
			"auth-extra-groups":              group,
			"expiration":                     time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	}, metav1.CreateOptions{})
	must(t, err)
	return clientFor(t, &rest.Config{
		Host:            r.Server,
		BearerToken:     id + "." + secret,
		TLSClientConfig: rest.TLSClientConfig{CAFile: r.CAFile},
	})
}

// requestFor returns the certificate request of a kubelet's first start.
func requestFor(t *testing.T, node string) (request *certificatesv1.CertificateSigningRequest, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	subject := &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	pem, err := certutil.MakeCSR(key, subject, nil, nil)
	must(t, err)
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem,
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}, keyPEM
}

func expectNodeJoins(t *testing.T, r *running) {
	t.Helper()
	joining := withToken(t, r, "joinok", "system:bootstrappers:karpenter:proxmox")
	requests := joining.CertificatesV1().CertificateSigningRequests()
	request, keyPEM := requestFor(t, "joiner")
	var name string
	// A new token is known to the API server as soon as its informer has seen it.
	eventually(t, readyWithin, "the token is accepted", func() error {
		created, err := requests.Create(t.Context(), request, metav1.CreateOptions{})
		if err == nil {
			name = created.Name
		}
		return err
	})
	var certificate []byte
	eventually(t, readyWithin, "the request is approved and signed", func() error {
		got, err := requests.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && len(got.Status.Certificate) == 0 {
			err = errors.New("there is no certificate yet")
		}
		if err == nil {
			certificate = got.Status.Certificate
		}
		return err
	})
	joined := clientFor(t, &rest.Config{
		Host:            r.Server,
		TLSClientConfig: rest.TLSClientConfig{CAFile: r.CAFile, CertData: certificate, KeyData: keyPEM},
	})
	nodes := joined.CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "joiner"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("the Node cannot register with its certificate: %v", err)
	}
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "another"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a Node that registers another gets %v; want forbidden, by NodeRestriction", err)
	}
}

func expectOtherGroupRefused(t *testing.T, r *running) {
	t.Helper()
	stranger := withToken(t, r, "others", "system:bootstrappers:others")
	request, _ := requestFor(t, "stranger")
	eventually(t, readyWithin, "the request is forbidden", func() error {
		_, err := stranger.CertificatesV1().CertificateSigningRequests().Create(t.Context(), request, metav1.CreateOptions{})
		switch {
		case apierrors.IsForbidden(err):
			return nil
		case err == nil:
			t.Fatal("a token of another group may request a certificate")
		}
		return err
	})
}
