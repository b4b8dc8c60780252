// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

// expectWebPage checks that the web page shows the Node to a user with the chart's role for viewers, and nothing to a user
// without it.
func (e *env) expectWebPage(t *testing.T, port int, claim *karpv1.NodeClaim) {
	t.Helper()
	viewer, other := e.tokenOf(t, "web-page-viewer"), e.tokenOf(t, "web-page-other")
	must(t, e.kube.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "web-page-viewers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: releaseName + "-web-page-viewer"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: metav1.NamespaceDefault, Name: "web-page-viewer"}},
	}))
	body := ""
	e.eventually(t, "the page shows the NodeClaim", func(ctx context.Context) error {
		var err error
		body, err = readWebPage(ctx, port, viewer)
		if err == nil && (!strings.Contains(body, claim.Name) || !strings.Contains(body, "Ready")) {
			err = fmt.Errorf("it shows:\n%s", body)
		}
		return err
	})
	if found := e.secrets.FindIn("the web page", body); len(found) > 0 {
		t.Errorf("found secrets: %q", found)
	}
	if _, err := readWebPage(t.Context(), port, other); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a user without the role: found %v, want status 403", err)
	}
}

func readWebPage(ctx context.Context, port int, token string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/proxmox", port), nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	// The certificate is self-signed.
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	response, err := insecure.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status + ": " + string(body))
	}
	return string(body), err
}

// tokenOf creates a service account in the namespace default and returns a token of it.
func (e *env) tokenOf(t *testing.T, name string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	must(t, e.kube.Create(t.Context(), account))
	request := &authenticationv1.TokenRequest{}
	must(t, e.kube.SubResource("token").Create(t.Context(), account, request))
	return request.Status.Token
}
