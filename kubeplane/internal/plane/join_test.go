// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"errors"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		t.Fatal(err)
	}
	subject := &pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}
	pem, err := certutil.MakeCSR(key, subject, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
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
