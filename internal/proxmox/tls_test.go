// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

// Settings required by Proxmox's web server.
func TestConnectionSettings(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	transport, err := newHTTPTransport(ClusterConfig{}, Options{}.withDefaults())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(transport.IdleConnTimeout).To(And(BeNumerically(">", 0), BeNumerically("<", 5*time.Second)), "Proxmox closes them after 5 s")
	g.Expect(transport.ResponseHeaderTimeout).To(BeNumerically(">", 30*time.Second), "want more than Proxmox's own 30 s, whose 596 is more specific")
	g.Expect(transport.TLSClientConfig.MinVersion).To(BeEquivalentTo(tls.VersionTLS12))
	g.Expect(transport.TLSClientConfig.InsecureSkipVerify).To(BeFalse(), "TLS: want verified")
	g.Expect(transport.Protocols.HTTP2()).To(BeFalse(), "protocols: want HTTP/1.1 alone")
	g.Expect(transport.Protocols.HTTP1()).To(BeTrue(), "protocols: want HTTP/1.1 alone")
}

func TestParseFingerprint(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	want := strings.TrimSuffix(strings.Repeat("AB:", 32), ":")
	for _, text := range []string{want, strings.ToLower(want), strings.Repeat("ab", 32), " " + want + "\n"} {
		g.Expect(parseFingerprint(text)).To(Equal(want))
	}
	for _, text := range []string{"", "AB", strings.Repeat("ab", 20), strings.Repeat("zz", 32)} {
		g.Expect(parseFingerprint(text)).Error().To(HaveOccurred(), text)
	}
}

func TestEndpoint(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for want, e := range map[string]endpoint{
		"/nodes/a%2Fb/qemu/1/config":                           at("/nodes/{node}/qemu/{vmid}/config", "a/b", 1),
		"/nodes/a/storage/s/content/s:iso/a%3Fb%20c.iso":       at("/nodes/{node}/storage/{storage}/content/{volume}", "a", "s", "s:iso/a?b c.iso"),
		"/nodes/a/qemu/1/firewall/rules/0?digest=x":            at("/nodes/{node}/qemu/{vmid}/firewall/rules/{pos}", "a", 1, 0).with("digest", "x"),
		"/nodes/a/tasks/UPID:a:1:b%21c:/log?limit=0&start=%26": at("/nodes/{node}/tasks/{upid}/log", "a", "UPID:a:1:b!c:").with("limit", "0").with("start", "&"),
	} {
		g.Expect(e.String()).To(Equal(want))
		g.Expect(e.missing).To(BeEmpty())
		for _, base := range []string{"https://first:8006/api2/json", "https://second:8443/proxy/api2/json"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+e.String(), nil)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(req.URL.String()).To(Equal(base + want))
		}
	}
}
