// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// secretFile returns a file with a secret and a function that replaces it.
func secretFile(t *testing.T, secret string) (path string, write func(string)) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "secret")
	write = func(text string) { NewWithT(t).Expect(os.WriteFile(path, []byte(text+"\n"), 0o600)).To(Succeed()) }
	write(secret)
	return path, write
}

func TestTokenFileChanged(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newFakeHost(t, works)
		secret, write := secretFile(t, "old")
		cfg := config(host)
		cfg.TokenSecret, cfg.TokenSecretFile = "", secret
		c := newClient(t, cfg, proxmox.Options{})
		g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
		write("new")
		g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
		// The file is missing while the kubelet replaces a mounted Secret.
		g.Expect(os.Remove(secret)).To(Succeed())
		g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
		var sent []string
		for _, r := range host.requests() {
			sent = append(sent, strings.TrimPrefix(r.header.Get("Authorization"), "PVEAPIToken="+testTokenID))
		}
		g.Expect(sent).To(Equal([]string{"=old", "=new", "=new"}))
	})
}

// A request whose token was replaced meanwhile is sent again.
func TestTokenRefused(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		secret, write := secretFile(t, "old")
		rotate := false
		host := newFakeHost(t, func(r request) reply {
			if strings.HasSuffix(r.header.Get("Authorization"), "=new") {
				return works(r)
			}
			if rotate {
				write("new")
			}
			return reply{status: 401, reason: "Authentication failed!"}
		})
		cfg := config(host)
		cfg.TokenSecret, cfg.TokenSecretFile = "", secret
		c := newClient(t, cfg, proxmox.Options{})
		upload := func() error {
			_, err := c.UploadISO(t.Context(), "pve1", "local", "a.iso", []byte("iso"))
			return err
		}
		g.Expect(upload()).To(MatchError(proxmox.ErrUnauthorized))
		rotate = true
		g.Expect(upload()).To(Succeed())
		seen := host.requests()
		g.Expect(seen).To(HaveLen(3))
		g.Expect(seen[2].body).To(ContainSubstring("iso"), "the complete body is sent again")
	})
}

// loginHost issues tickets and accepts the newest one.
func loginHost(t *testing.T) (host *fakeHost, logins *atomic.Int32) {
	t.Helper()
	logins = &atomic.Int32{}
	host = newFakeHost(t, func(r request) reply {
		if r.uri == "/access/ticket" {
			if !strings.Contains(r.body, `"password":"letmein"`) {
				return reply{status: 401, reason: "authentication failure", body: `{"data":null}`}
			}
			n := logins.Add(1)
			return data(fmt.Sprintf(`{"username":"root@pam","ticket":"PVE:root@pam:%d","CSRFPreventionToken":"csrf%d"}`, n, n))
		}
		if r.header.Get("Cookie") != fmt.Sprintf("PVEAuthCookie=PVE:root@pam:%d", logins.Load()) {
			return reply{status: 401, reason: "permission denied - invalid PVE ticket"}
		}
		if r.method != "GET" && r.header.Get("CSRFPreventionToken") == "" {
			return reply{status: 401, reason: "Permission denied - invalid csrf token"}
		}
		return works(r)
	})
	return host, logins
}

func loginConfig(hosts ...*fakeHost) proxmox.ClusterConfig {
	cfg := config(hosts...)
	cfg.TokenID, cfg.TokenSecret = "", ""
	cfg.Username, cfg.Password = "root@pam", "letmein"
	return cfg
}

func TestLoginRenewal(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host, logins := loginHost(t)
		c := newClient(t, loginConfig(host), proxmox.Options{})

		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				g.Expect(c.StartVM(t.Context(), "pve1", 200+i)).Error().NotTo(HaveOccurred())
			})
		}
		wg.Wait()
		g.Expect(logins.Load()).To(BeEquivalentTo(1))

		time.Sleep(90 * time.Minute)
		g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().NotTo(HaveOccurred())
		g.Expect(logins.Load()).To(BeEquivalentTo(2))
		logins.Add(1) // as if the Cluster's key had changed: the ticket is invalid
		g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().NotTo(HaveOccurred())
		for _, r := range host.requests() {
			g.Expect(r.header.Get("Authorization")).To(BeEmpty())
		}
	})
}

// Regardless of the login's outcome, the call itself was not made.
func TestLoginConnectionLost(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		c := newClient(t, loginConfig(newFakeHost(t, always(reply{drop: true}))), proxmox.Options{})
		g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().To(And(MatchError(proxmox.ErrUnreachable), Not(MatchError(proxmox.ErrUnknownOutcome))))
	})
}

// Tools such as fail2ban block a client that sends a wrong password with every request.
func TestLoginNotRepeated(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host, logins := loginHost(t)
		file, write := secretFile(t, "wrong-password")
		cfg := config(host)
		cfg.Root = &proxmox.RootLogin{Username: proxmox.RootUser, PasswordFile: file}
		root, err := proxmox.NewRoot(cfg, proxmox.Options{DialContext: network.DialContext})
		g.Expect(err).NotTo(HaveOccurred())
		set := func() error {
			return root.Set(t.Context(), "pve1", 200, proxmox.VMConfig{}, proxmox.RootOptions{Hugepages: "2"})
		}
		sent := func() int { return len(host.requests()) }

		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				g.Expect(set()).To(And(MatchError(proxmox.ErrUnauthorized), MatchError(ContainSubstring("authentication failure")),
					Not(MatchError(ContainSubstring("wrong-password")))))
			})
		}
		wg.Wait()
		g.Expect(sent()).To(Equal(1), "the refused password was sent again")
		time.Sleep(59 * time.Second)
		g.Expect(set()).To(MatchError(proxmox.ErrUnauthorized))
		g.Expect(sent()).To(Equal(1), "the refused password was sent again within a minute")
		time.Sleep(time.Second)
		for range 2 {
			g.Expect(set()).To(MatchError(proxmox.ErrUnauthorized))
		}
		g.Expect(sent()).To(Equal(2), "the refused password is sent again once a minute")

		write("another-wrong-password")
		for range 2 {
			g.Expect(set()).To(MatchError(proxmox.ErrUnauthorized))
		}
		g.Expect(sent()).To(Equal(3), "a changed password is sent at once")
		write("letmein")
		g.Expect(set()).To(Succeed())
		g.Expect(logins.Load()).To(BeEquivalentTo(1))

		write("wrong-password")
		time.Sleep(61 * time.Minute)
		g.Expect(set()).To(Succeed(), "the ticket is still valid")
		time.Sleep(50 * time.Minute)
		g.Expect(set()).To(MatchError(proxmox.ErrUnauthorized))
	})
}
