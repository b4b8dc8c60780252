// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane_test

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUp(t *testing.T) {
	t.Parallel()
	kubeconfig := filepath.Join(t.TempDir(), "config")
	r := up(t, "--audit", "--kubeconfig-out", kubeconfig, "--feature-gates", "InPlacePodVerticalScaling=true", "--server-ip", "192.0.2.7")
	t.Logf("ready after %s", r.took)

	expectVersion(t, r)
	expectCertificateFor(t, r, "192.0.2.7")
	expectPodScheduled(t, r)
	expectNodeJoins(t, r)
	expectOtherGroupRefused(t, r)
	log, err := os.ReadFile(filepath.Join(r.Dir, "logs", "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	expectContains(t, string(log), `"kind":"Event"`)

	r.signal(t, syscall.SIGTERM)
	if code := r.expectEnd(t); code != 0 {
		t.Errorf("the exit code after SIGTERM is %d; want 0", code)
	}
	r.expectNothingLeft(t)
	expectNoFile(t, r.readyFile)
	expectNoFile(t, r.Dir)
	if want := fmt.Sprintf("export KUBECONFIG=%s\n", kubeconfig); r.stdout.String() != want {
		t.Errorf("standard output is %q; want %q", r.stdout, want)
	}
}

func TestUpConcurrently(t *testing.T) {
	t.Parallel()
	first, second := launch(t, nil, nil), launch(t, nil, nil)
	first.awaitReady(t)
	second.awaitReady(t)
	uids := map[string]bool{}
	for _, r := range []*running{first, second} {
		namespace, err := r.client(t).CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uids[string(namespace.UID)] = true
	}
	if len(uids) != 2 {
		t.Error("both kubeconfigs lead to the same cluster")
	}
}

func TestUpNamedDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "plane")
	r := up(t, "--dir", dir, "--quiet")

	other := launch(t, nil, nil, "--dir", dir)
	if code := other.expectEnd(t); code != 1 {
		t.Errorf("the exit code of a second plane in the same directory is %d; want 1", code)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastHeartbeatTime: metav1.Now()}}
	node.Status.Capacity = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	node.Status.Allocatable = node.Status.Capacity
	if _, err := client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	secure, ok := conn.(*tls.Conn)
	if !ok {
		t.Fatalf("a TLS dialer gave a %T", conn)
	}
	if err := secure.ConnectionState().PeerCertificates[0].VerifyHostname(address); err != nil {
		t.Error(err)
	}
}
