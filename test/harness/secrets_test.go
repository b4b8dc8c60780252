// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"encoding/base64"
	"net/url"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSecretsFindIn checks that the search finds secrets in every encoding. Tests rely on it
// finding nothing.
func TestSecretsFindIn(t *testing.T) {
	t.Parallel()
	s := &Secrets{values: map[string][]string{}, seen: map[string]bool{}}
	s.addSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "values"}, Data: map[string][]byte{
		"password": []byte("correct horse/battery\n\"staple\""), "apiServer": []byte("https://10.0.0.1:6443"), "short": []byte("true"),
	}})
	s.addSecret(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken, Data: map[string][]byte{
		"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "auth-extra-groups": []byte("system:bootstrappers:karpenter"),
	}})
	s.Add("the token", "11111111-2222-3333-4444-555555555555\n")
	const password = "correct horse/battery\n\"staple\""
	for text, want := range map[string]string{
		"x" + password + "y":                                "values/password",
		`{"msg":"correct horse/battery\n\"staple\""}`:       "values/password",
		base64.StdEncoding.EncodeToString([]byte(password)): "values/password",
		"?a=" + url.QueryEscape(password):                   "values/password",
		"token abcdef.0123456789abcdef":                     "bootstrap-token-abcdef/token-secret",
		"=11111111-2222-3333-4444-555555555555":             "the token",
		"PVE:root@pam:65A1B2C3::c2ln":                       "login ticket",
		"Authorization: PVEAPIToken=a@pve!b=c":              "header of a token",
	} {
		NewWithT(t).Expect(s.FindIn("it", text)).To(HaveExactElements(ContainSubstring(want)), text)
	}
	NewWithT(t).Expect(s.FindIn("it", "https://10.0.0.1:6443 abcdef system:bootstrappers:karpenter true")).To(BeEmpty(), "public values")
}
