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

func TestTokenFileChanged(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newFakeHost(t, always(data(version)))
		secret := filepath.Join(t.TempDir(), "secret")
		write := func(text string) { g.Expect(os.WriteFile(secret, []byte(text+"\n"), 0o600)).To(Succeed()) }
		write("old")
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
			sent = append(sent, r.header.Get("Authorization"))
		}
		g.Expect(sent).To(Equal([]string{
			"PVEAPIToken=" + testTokenID + "=old", "PVEAPIToken=" + testTokenID + "=new", "PVEAPIToken=" + testTokenID + "=new",
		}))
	})
}

// A request whose token was replaced meanwhile is sent again.
func TestTokenRefused(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		secret := filepath.Join(t.TempDir(), "secret")
		write := func(text string) { g.Expect(os.WriteFile(secret, []byte(text), 0o600)).To(Succeed()) }
		rotate := false
		host := newFakeHost(t, func(r request) reply {
			if strings.HasSuffix(r.header.Get("Authorization"), "=new") {
				return data(`"` + testUPID + `"`)
			}
			if rotate {
				write("new")
			}
			return reply{status: 401, reason: "Authentication failed!"}
		})
		write("old")
		cfg := config(host)
		cfg.TokenSecret, cfg.TokenSecretFile = "", secret
		c := newClient(t, cfg, proxmox.Options{})
		g.Expect(c.UploadISO(t.Context(), "pve1", "local", "a.iso", []byte("iso"))).Error().To(MatchError(proxmox.ErrUnauthorized))
		rotate = true
		g.Expect(c.UploadISO(t.Context(), "pve1", "local", "a.iso", []byte("iso"))).Error().NotTo(HaveOccurred())
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
		return data(`"` + testUPID + `"`)
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
		for _, r := range host.requests() {
			g.Expect(r.header.Get("Authorization")).To(BeEmpty())
		}
	})
}

func TestLoginTicketRefused(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host, logins := loginHost(t)
		c := newClient(t, loginConfig(host), proxmox.Options{})
		g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().NotTo(HaveOccurred())
		logins.Add(1) // as if the Cluster's key had changed: the ticket is invalid
		g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().NotTo(HaveOccurred())
	})
}

func TestLoginWrongPassword(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host, _ := loginHost(t)
		cfg := loginConfig(host)
		cfg.Password = "wrong-password"
		c := newClient(t, cfg, proxmox.Options{})
		_, err := c.StartVM(t.Context(), "pve1", 200)
		g.Expect(err).To(MatchError(proxmox.ErrUnauthorized))
		g.Expect(err.Error()).NotTo(ContainSubstring("wrong-password"))
	})
}

// Regardless of the login's outcome, the call itself was not made.
func TestLoginConnectionLost(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host := newFakeHost(t, always(reply{drop: true}))
		c := newClient(t, loginConfig(host), proxmox.Options{})
		_, err := c.StartVM(t.Context(), "pve1", 200)
		g.Expect(err).To(MatchError(proxmox.ErrUnreachable))
		g.Expect(err).NotTo(MatchError(proxmox.ErrUnknownOutcome))
	})
}

// Tools such as fail2ban block a client that sends a wrong password with every request.
func TestLoginNotRepeated(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		host, logins := loginHost(t)
		file := filepath.Join(t.TempDir(), "password")
		write := func(password string) { g.Expect(os.WriteFile(file, []byte(password), 0o600)).To(Succeed()) }
		write("wrong-password")
		cfg := config(host)
		cfg.Root = &proxmox.RootLogin{Username: proxmox.RootUser, PasswordFile: file}
		root, err := proxmox.NewRoot(cfg, proxmox.Options{DialContext: network.DialContext})
		g.Expect(err).NotTo(HaveOccurred())
		bind := func() error {
			return root.Set(t.Context(), "pve1", 200, proxmox.VMConfig{}, proxmox.RootOptions{Hugepages: "2"})
		}
		sent := func() int { return len(host.requests()) }

		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				err := bind()
				g.Expect(err).To(And(MatchError(proxmox.ErrUnauthorized), MatchError(ContainSubstring("authentication failure"))))
				g.Expect(err.Error()).NotTo(ContainSubstring("wrong-password"))
			})
		}
		wg.Wait()
		g.Expect(sent()).To(Equal(1), "the refused password was sent again")
		time.Sleep(59 * time.Second)
		g.Expect(bind()).To(MatchError(proxmox.ErrUnauthorized))
		g.Expect(sent()).To(Equal(1), "the refused password was sent again within a minute")
		time.Sleep(time.Second)
		for range 2 {
			g.Expect(bind()).To(MatchError(proxmox.ErrUnauthorized))
		}
		g.Expect(sent()).To(Equal(2), "the refused password is sent again once a minute")

		write("another-wrong-password")
		for range 2 {
			g.Expect(bind()).To(MatchError(proxmox.ErrUnauthorized))
		}
		g.Expect(sent()).To(Equal(3), "a changed password is sent at once")
		write("letmein")
		g.Expect(bind()).To(Succeed())
		g.Expect(logins.Load()).To(BeEquivalentTo(1))

		write("wrong-password")
		time.Sleep(61 * time.Minute)
		g.Expect(bind()).To(Succeed(), "the ticket is still valid")
		time.Sleep(50 * time.Minute)
		g.Expect(bind()).To(MatchError(proxmox.ErrUnauthorized))
	})
}
