// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// plane is a real control plane: CSRs are signed by the real controller manager
// and Nodes admitted by the real authorizer.
type plane struct {
	client kubernetes.Interface
	server string
	ca     []byte
}

// startPlane runs the kubeplane binary until the test ends.
func startPlane(t *testing.T) plane {
	t.Helper()
	binary := os.Getenv("KUBEPLANE")
	if binary == "" {
		binary = filepath.Join("..", "..", ".cache", "bin", "kubeplane")
	}
	if _, err := os.Stat(binary); err != nil {
		t.Skipf("SKIPPED: no control plane at %s: build it with make, or set KUBEPLANE", binary)
	}
	g := NewWithT(t)
	readyFile := filepath.Join(t.TempDir(), "ready.json")
	up := exec.Command(binary, "up", "--quiet", "--exit-with-parent", "--ready-file", readyFile)
	up.Stdout, up.Stderr = os.Stderr, os.Stderr
	stdin, err := up.StdinPipe() // kubeplane exits when its stdin is closed, even if the test is killed
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(up.Start()).To(Succeed())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = up.Process.Signal(syscall.SIGTERM)
		_ = up.Wait()
	})
	var ready struct{ Kubeconfig, Server, CAFile string }
	g.Eventually(func() error {
		raw, err := os.ReadFile(readyFile)
		if err != nil {
			return err
		}
		return json.Unmarshal(raw, &ready)
	}, 2*time.Minute, 100*time.Millisecond).Should(Succeed())
	config, err := clientcmd.BuildConfigFromFlags("", ready.Kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	g.Expect(err).NotTo(HaveOccurred())
	ca, err := os.ReadFile(ready.CAFile)
	g.Expect(err).NotTo(HaveOccurred())
	return plane{client: client, server: ready.Server, ca: ca}
}

// token creates a join token for one guest.
func (p plane) token(t *testing.T, id string) string {
	t.Helper()
	const secret = "0123456789abcdef"
	_, err := p.client.CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret,
			"expiration":                     time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true",
			"auth-extra-groups":              "system:bootstrappers:karpenter:proxmox",
		},
	}, metav1.CreateOptions{})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return id + "." + secret
}

func (p plane) node(ctx context.Context, name string) (*corev1.Node, error) {
	return p.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}
