// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

func TestCAFileChanged(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newFakeHost(t, always(data(version)))
		file := filepath.Join(t.TempDir(), "ca.pem")
		age := time.Hour
		write := func(text string) {
			g.Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
			then := time.Now().Add(-age)
			age -= time.Minute
			g.Expect(os.Chtimes(file, then, then)).To(Succeed())
		}
		cfg := config(host)
		right, foreign := cfg.CA, foreignCA(t)
		write(foreign)
		cfg.CA, cfg.CAFile = foreign, file
		c := newClient(t, cfg, proxmox.Options{})

		g.Expect(c.Version(t.Context())).Error().To(MatchError(proxmox.ErrUnreachable), "a foreign CA is not trusted")
		for _, text := range []string{right, right[:len(right)/2]} {
			write(text)
			g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred(), "the new CA is trusted, and an incomplete file is ignored")
		}
		write(foreign)
		g.Expect(c.Version(t.Context())).Error().To(MatchError(proxmox.ErrUnreachable), "the old CA is no longer trusted")
	})
}

// foreignCA returns a CA that signed no certificate of the test.
func foreignCA(t *testing.T) string {
	t.Helper()
	g := NewWithT(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	g.Expect(err).NotTo(HaveOccurred())
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	g.Expect(err).NotTo(HaveOccurred())
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
