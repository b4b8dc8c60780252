// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/x509"
	"path/filepath"
	"testing"
)

// The image contains no CA certificates, and a Proxmox may have a certificate of a public CA.
func TestFallbackRootCertificates(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("SSL_CERT_FILE", filepath.Join(empty, "absent"))
	t.Setenv("SSL_CERT_DIR", empty)
	roots, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	if roots.Equal(x509.NewCertPool()) {
		t.Error("no CA is trusted")
	}
}
