// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"crypto/tls"
	"net/http"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

var fingerprintPattern = regexp.MustCompile(`([0-9A-F]{2}:){31}[0-9A-F]{2}`)

func checkMessage(t *testing.T, cfg proxmox.ClusterConfig) string {
	t.Helper()
	g := NewWithT(t)
	err := proxmox.Check(t.Context(), newClient(t, cfg, proxmox.Options{}))
	if err == nil {
		return ""
	}
	g.Expect(err).NotTo(MatchError(ContainSubstring("\n")), "not one line without secrets")
	g.Expect(err).NotTo(MatchError(ContainSubstring(testSecret)), "not one line without secrets")
	return err.Error()
}

func TestCheck(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		g.Expect(checkMessage(t, config(newFakeHost(t, always(data(version)))))).To(BeEmpty())
	})
}

func TestCheckUntrustedCertificate(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newFakeHost(t, always(data(version)))
		cfg := config(host)
		cfg.CA = ""
		message := checkMessage(t, cfg)
		g.Expect(message).To(And(
			ContainSubstring(`region "dc1"`), ContainSubstring(host.server.URL), ContainSubstring("not trusted"),
			ContainSubstring("ca_file"), ContainSubstring("fingerprint"),
		))
		cfg.Fingerprints = []string{fingerprintPattern.FindString(message)}
		g.Expect(checkMessage(t, cfg)).To(BeEmpty(), "the printed fingerprint is the right one")

		cfg.Fingerprints = []string{strings.Repeat("AB", 32)}
		g.Expect(checkMessage(t, cfg)).To(And(ContainSubstring("which is not the configured one"), ContainSubstring(fingerprintPattern.FindString(message))))

		cfg.Fingerprints, cfg.Insecure = nil, true
		g.Expect(checkMessage(t, cfg)).To(BeEmpty())
	})
}

func TestCheckWrongCredentials(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newFakeHost(t, always(reply{status: 401, reason: "Authentication failed!"}))
		g.Expect(checkMessage(t, config(host))).To(And(
			ContainSubstring(host.server.URL), ContainSubstring("Authentication failed!"), ContainSubstring("token_secret"),
		))
	})
}

func TestCheckNotProxmox(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		for _, answer := range []reply{
			{status: 404, body: "<html>nginx</html>"},
			{status: 200, body: "<html>welcome</html>"},
			{status: 200, body: `{"kind":"Status"}`},
			{status: 302, body: ""},
		} {
			message := checkMessage(t, config(newFakeHost(t, always(answer))))
			g.Expect(message).To(ContainSubstring("not a Proxmox VE API"), "%d %s", answer.status, answer.body)
			g.Expect(message).To(ContainSubstring("https://host:8006"), "%d %s", answer.status, answer.body)
		}
	})
}

func TestCheckPlainHTTP(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		plain := serve(t, http.NotFoundHandler())
		plain.Start()
		cfg := config(newFakeHost(t, always(data(version))))
		cfg.URLs = []string{strings.Replace(plain.URL, "http://", "https://", 1)}
		g.Expect(checkMessage(t, cfg)).To(ContainSubstring("does not use TLS"))
	})
}

func TestCheckUnreachable(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newFakeHost(t, always(data(version)))
		cfg := config(host)
		host.server.Close()
		g.Expect(checkMessage(t, cfg)).To(And(
			ContainSubstring("no response"), ContainSubstring(host.server.URL), ContainSubstring("pveproxy"),
		))
	})
}

func TestCheckOldTLS(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newFakeHost(t, always(data(version)))
		old := serve(t, http.NotFoundHandler())
		old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
		old.StartTLS()
		cfg := config(host)
		cfg.URLs = []string{old.URL}
		g.Expect(checkMessage(t, cfg)).To(ContainSubstring("protocol version"))
	})
}
