// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	htmlType = "Content-Type: text/html"
	// pveServer is the header of all responses of Proxmox.
	pveServer = "Server: pve-api-daemon/3.0"
)

// The response of a load balancer without a Host behind it means that its URL does not work.
func TestFailoverOfForeignResponse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer reply
		// refused is whether a write certainly had no effect.
		refused bool
	}{
		"no_host":         {answer: reply{status: 503, header: htmlType, body: "<html><body>No server is available</body></html>"}},
		"no_host_as_JSON": {answer: reply{status: 503, body: `{"message":"no Route matched"}`}},
		"broken_host":     {answer: reply{status: 502, header: "Content-Type: text/plain", body: "Bad Gateway"}},
		"slow_host_408":   {answer: reply{status: 408, header: "Server: envoy"}},
		"slow_host":       {answer: reply{status: 504, header: "Server: awselb/2.0"}},
		"error_page":      {answer: reply{status: 500, header: htmlType, body: "<html>"}},
		"page":            {answer: reply{status: 200, header: htmlType, body: "<html>welcome</html>"}},
		"unknown_path":    {answer: reply{status: 404, header: htmlType, body: "<html>"}, refused: true},
		"login_page":      {answer: reply{status: 302, header: "Location: https://login.example.com"}, refused: true},
		"firewall":        {answer: reply{status: 403, header: htmlType, body: "<html>"}, refused: true},
		"hangs":           {answer: hangs(request{})},
		"drops":           {answer: reply{drop: true}},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			balancer, up := newFakeHost(t, always(test.answer)), newFakeHost(t, works)
			c := newClient(t, config(balancer, up), proxmox.Options{})
			for range 4 {
				g.Expect(c.Version(withTimeout(t, 20*time.Second))).Error().NotTo(HaveOccurred(), "the deadline leaves time for the second URL")
			}
			g.Expect(balancer.requests()).To(HaveLen(1), "the URL is not used again")

			balancer, up = newFakeHost(t, always(test.answer)), newFakeHost(t, works)
			c = newClient(t, config(balancer, up), proxmox.Options{})
			_, err := c.StartVM(withTimeout(t, 20*time.Second), "pve1", 200)
			if test.refused {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(And(MatchError(proxmox.ErrUnknownOutcome), MatchError(ContainSubstring(balancer.server.URL))))
				g.Expect(up.requests()).To(BeEmpty(), "a write that may have arrived is not repeated")
			}
			for range 2 {
				g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().NotTo(HaveOccurred())
			}
			g.Expect(balancer.writes()).To(HaveLen(1), "the URL is not used again")
		})
	}
}

// Errors of Proxmox are no reason to leave the URL.
func TestFailoverNotOfProxmoxError(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]reply{
		"message":              failed(500, "VM is locked (backup)"),
		"reason_phrase_alone":  {status: 500, reason: "got no worker upid - start worker failed", header: "X-A: b"},
		"host_away":            {status: 595, reason: "No route to host", header: pveServer},
		"host_broke_off":       {status: 596, reason: "Connection timed out", header: "X-A: b"},
		"unavailable":          {status: 503, reason: "too many connections", header: pveServer},
		"unavailable_as_JSON":  failed(503, "too many connections"),
		"credentials":          {status: 401, reason: "Authentication failed!", header: "X-A: b"},
		"unknown_method":       {status: 501, reason: "Method 'GET /version' not implemented", header: pveServer},
		"forbidden":            failed(403, "Permission check failed (/vms/200, VM.Audit)"),
		"not_JSON_by_itself":   {status: 500, reason: "malformed JSON string", header: "Content-Type: text/plain"},
		"redirect_of_pveproxy": {status: 301, header: pveServer},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			fails, up := newFakeHost(t, always(answer)), newFakeHost(t, works)
			c := newClient(t, config(fails, up), proxmox.Options{})
			g.Expect(c.Version(t.Context())).Error().To(HaveOccurred())
			g.Expect(up.requests()).To(BeEmpty())
			for range 4 {
				_, _ = c.Version(t.Context())
			}
			g.Expect(fails.requests()).To(HaveLen(3), "both URLs share the requests")
		})
	}
}
