// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

var fingerprintPattern = regexp.MustCompile(`([0-9A-F]{2}:){31}[0-9A-F]{2}`)

func checkMessage(t *testing.T, cfg proxmox.ClusterConfig) string {
	t.Helper()
	err := proxmox.Check(testContext(t), newClient(t, cfg, proxmox.Options{DialTimeout: 5 * time.Second}))
	if err == nil {
		return ""
	}
	if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), testSecret) {
		t.Errorf("not one line without secrets: %q", err)
	}
	return err.Error()
}

func TestCheck(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(checkMessage(t, config(newFakeHost(t, always(data(version)))))).To(BeEmpty())
}

func TestCheckUntrustedCertificate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
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
}

func TestCheckWrongCredentials(t *testing.T) {
	t.Parallel()
	host := newFakeHost(t, always(reply{status: 401, reason: "Authentication failed!"}))
	NewWithT(t).Expect(checkMessage(t, config(host))).To(And(
		ContainSubstring(host.server.URL), ContainSubstring("Authentication failed!"), ContainSubstring("token_secret"),
	))
}

func TestCheckNotProxmox(t *testing.T) {
	t.Parallel()
	for _, answer := range []reply{
		{status: 404, body: "<html>nginx</html>"},
		{status: 200, body: "<html>welcome</html>"},
		{status: 200, body: `{"kind":"Status"}`},
		{status: 302, body: ""},
	} {
		message := checkMessage(t, config(newFakeHost(t, always(answer))))
		if !strings.Contains(message, "not a Proxmox VE API") || !strings.Contains(message, "https://host:8006") {
			t.Errorf("%d %s: found %q", answer.status, answer.body, message)
		}
	}
}

func TestCheckPlainHTTP(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	cfg := config(newFakeHost(t, always(data(version))))
	cfg.URLs = []string{strings.Replace(plain.URL, "http://", "https://", 1)}
	NewWithT(t).Expect(checkMessage(t, cfg)).To(ContainSubstring("does not use TLS"))
}

func TestCheckUnreachable(t *testing.T) {
	t.Parallel()
	host := newFakeHost(t, always(data(version)))
	cfg := config(host)
	host.server.Close()
	NewWithT(t).Expect(checkMessage(t, cfg)).To(And(
		ContainSubstring("no response"), ContainSubstring(host.server.URL), ContainSubstring("pveproxy"),
	))
}

func TestCheckOldTLS(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host := newFakeHost(t, always(data(version)))
	old := httptest.NewUnstartedServer(http.NotFoundHandler())
	old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	old.Config.ErrorLog = log.New(io.Discard, "", 0)
	old.StartTLS()
	t.Cleanup(old.Close)
	cfg := config(host)
	cfg.URLs = []string{old.URL}
	g.Expect(checkMessage(t, cfg)).To(ContainSubstring("protocol version"))
}
