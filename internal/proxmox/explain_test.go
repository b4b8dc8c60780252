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
	t.Parallel()
	notProxmox := []string{"not a Proxmox VE API", "https://host:8006"}
	for name, test := range map[string]struct {
		answer reply
		want   []string // parts of the message beside the URL
	}{
		"works":             {data(version), nil},
		"wrong_credentials": {reply{status: 401, reason: "Authentication failed!"}, []string{"Authentication failed!", "token_secret"}},
		"not_found":         {reply{status: 404, body: "<html>nginx</html>"}, notProxmox},
		"page":              {reply{status: 200, body: "<html>welcome</html>"}, notProxmox},
		"Kubernetes":        {reply{status: 200, body: `{"kind":"Status"}`}, notProxmox},
		"redirect":          {reply{status: 302, body: ""}, notProxmox},
		"load_balancer": {reply{status: 503, header: htmlType, body: "<html>"}, []string{`region "dc1"`, "no response from Proxmox VE",
			"pveproxy", "a load balancer or reverse proxy responds with 503 Service Unavailable"}},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			host := newFakeHost(t, always(test.answer))
			message := checkMessage(t, config(host))
			if test.want == nil {
				g.Expect(message).To(BeEmpty())
				return
			}
			for _, part := range append(test.want, host.server.URL) {
				g.Expect(message).To(ContainSubstring(part))
			}
		})
	}
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

func TestCheckConnection(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host, plain, old := newFakeHost(t, works), serve(t, http.NotFoundHandler()), serve(t, http.NotFoundHandler())
		cfg := config(host)
		host.server.Close()
		g.Expect(checkMessage(t, cfg)).To(And(
			ContainSubstring("no response"), ContainSubstring(host.server.URL), ContainSubstring("pveproxy"),
		))
		plain.Start()
		cfg.URLs = []string{strings.Replace(plain.URL, "http://", "https://", 1)}
		g.Expect(checkMessage(t, cfg)).To(ContainSubstring("does not use TLS"))
		old.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
		old.StartTLS()
		cfg.URLs = []string{old.URL}
		g.Expect(checkMessage(t, cfg)).To(ContainSubstring("protocol version"))
	})
}
