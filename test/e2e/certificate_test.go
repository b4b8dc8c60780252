// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// authority is a CA with a certificate for this machine.
type authority struct {
	ca   string
	leaf tls.Certificate
}

// newAuthority returns a new CA that nothing trusts.
func newAuthority(t *testing.T) *authority {
	t.Helper()
	caKey, leafKey := newKey(t), newKey(t)
	parent := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: rand.Text()}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	ca, err := x509.CreateCertificate(rand.Reader, parent, parent, caKey.Public(), caKey)
	must(t, err)
	child := &x509.Certificate{
		SerialNumber: big.NewInt(2), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: parent.NotBefore, NotAfter: parent.NotAfter,
	}
	leaf, err := x509.CreateCertificate(rand.Reader, child, parent, leafKey.Public(), caKey)
	must(t, err)
	return &authority{
		ca:   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca})),
		leaf: tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: leafKey},
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}
