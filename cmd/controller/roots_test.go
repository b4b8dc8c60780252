// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/x509"
	"path/filepath"
	"testing"
)

// TestPublicCertificatesAreTrustedWithoutASystem: the image has no files of certificates, and a Proxmox may have one of a
// public authority.
func TestPublicCertificatesAreTrustedWithoutASystem(t *testing.T) {
	nowhere := t.TempDir()
	t.Setenv("SSL_CERT_FILE", filepath.Join(nowhere, "absent"))
	t.Setenv("SSL_CERT_DIR", nowhere)
	roots, err := x509.SystemCertPool()
	if err != nil {
		t.Fatal(err)
	}
	if roots.Equal(x509.NewCertPool()) {
		t.Error("no authority is trusted")
	}
}
