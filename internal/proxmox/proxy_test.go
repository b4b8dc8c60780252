// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// connectProxy is a proxy that only tunnels TLS, with a user if that is set.
type connectProxy struct {
	user *url.Userinfo

	mu      sync.Mutex
	targets []string
}

func (p *connectProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.user != nil && r.Header.Get("Proxy-Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte(p.user.String())) {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	if r.Method != http.MethodConnect {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	target, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	p.mu.Lock()
	p.targets = append(p.targets, r.Host)
	p.mu.Unlock()
	w.WriteHeader(http.StatusOK)
	client, received, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	// Both end when either side closes its connection. The server may have received the beginning of the handshake.
	go func() {
		_, _ = io.Copy(target, received)
		_ = target.Close()
	}()
	go func() {
		_, _ = io.Copy(client, target)
		_ = client.Close()
	}()
}

func (p *connectProxy) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.targets
}

func TestProxy(t *testing.T) {
	t.Parallel()
	user := url.UserPassword("karpenter", "s3cr3t")
	for name, test := range map[string]struct {
		start          func(http.Handler) *httptest.Server
		required, sent *url.Userinfo
		want           string
	}{
		"open":         {start: httptest.NewServer},
		"with_user":    {start: httptest.NewServer, required: user, sent: user},
		"without_user": {start: httptest.NewServer, required: user, want: "Proxy Authentication Required"},
		// The proxy's certificate is verified, but not with the CA of the Cluster, and insecure is for Proxmox only.
		"TLS": {start: httptest.NewTLSServer, want: "certificate signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			proxy := &connectProxy{user: test.required}
			server := test.start(proxy)
			t.Cleanup(server.Close)
			address, err := url.Parse(server.URL)
			g.Expect(err).NotTo(HaveOccurred())
			address.User = test.sent

			sim := startSim(t, pvesim.Options{}, "9.2")
			cfg := simConfig(sim)
			cfg.CA, cfg.Insecure, cfg.ProxyURL = "", true, proxmox.Secret(address.String())
			c, err := proxmox.New(cfg, proxmox.Options{DialTimeout: time.Minute}) // a busy machine needs longer for a TLS handshake
			g.Expect(err).NotTo(HaveOccurred())
			_, err = c.Version(t.Context())
			if test.want != "" {
				g.Expect(err).To(MatchError(ContainSubstring(test.want)))
				g.Expect(proxy.seen()).To(BeEmpty())
				return
			}
			g.Expect(err).NotTo(HaveOccurred())
			base, err := url.Parse(sim.URL())
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(proxy.seen()).To(ContainElement(base.Host), "the request must be sent through the proxy")
		})
	}
}
