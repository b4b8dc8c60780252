// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// realmHosts returns Hosts that issue and accept tickets. While their realm hangs, they do not
// respond to logins.
func realmHosts(t *testing.T, n int) (hosts []*fakeHost, hanging *atomic.Bool) {
	t.Helper()
	hanging = &atomic.Bool{}
	for range n {
		hosts = append(hosts, newFakeHost(t, func(r request) reply {
			switch {
			case r.uri == "/access/ticket" && hanging.Load():
				return hangs(r)
			case r.uri == "/access/ticket":
				return data(`{"username":"k@ldap","ticket":"PVE:k@ldap:1","CSRFPreventionToken":"csrf"}`)
			case r.uri == "/access/domains":
				return data(`[]`)
			case r.header.Get("Cookie") == "":
				return reply{status: 401, reason: "No ticket", wait: 3 * time.Second}
			}
			return data(version)
		}))
	}
	return hosts, hanging
}

// sentLogins returns the number of logins that a Host received.
func sentLogins(host *fakeHost) int {
	return len(slices.DeleteFunc(host.requests(), func(r request) bool { return r.uri != "/access/ticket" }))
}

// While the realm hangs, requests use the ticket as long as it is valid.
func TestLoginHanging(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		hosts, hanging := realmHosts(t, 1)
		host := hosts[0]
		c := newClient(t, loginConfig(host), proxmox.Options{})
		call := func() error {
			_, err := c.Version(withTimeout(t, time.Minute))
			return err
		}
		g.Expect(call()).To(Succeed())

		hanging.Store(true)
		time.Sleep(61 * time.Minute)
		renewal := make(chan error, 1)
		go func() { renewal <- call() }()
		synctest.Wait()
		g.Expect(sentLogins(host)).To(Equal(2))
		g.Expect(call()).To(Succeed())
		g.Expect(renewal).NotTo(Receive(), "the request waited for the renewal")
		g.Expect(<-renewal).To(Succeed(), "the renewal left no time for the request")
		g.Expect(call()).To(Succeed())
		g.Expect(sentLogins(host)).To(Equal(2), "the renewal was repeated within a minute")

		hanging.Store(false)
		time.Sleep(time.Minute)
		g.Expect(call()).To(Succeed())
		g.Expect(sentLogins(host)).To(Equal(3), "the renewal was not repeated after a minute")
		time.Sleep(59 * time.Minute)
		g.Expect(call()).To(Succeed())
		g.Expect(sentLogins(host)).To(Equal(3), "the new ticket is not used")
	})
}

// URLs whose Hosts wait for the realm work.
func TestLoginHangingURLs(t *testing.T) {
	t.Parallel()
	runSimulated(t, "login", func(t *testing.T, g *WithT) {
		hosts, hanging := realmHosts(t, 2)
		c := newClient(t, loginConfig(hosts...), proxmox.Options{ResponseTimeout: 10 * time.Second})

		hanging.Store(true)
		g.Expect(c.Version(withTimeout(t, 2*time.Minute))).Error().To(MatchError(proxmox.ErrUnreachable))
		hanging.Store(false)
		expectUsed(t, g, c, hosts)
	})
	runSimulated(t, "renewal", func(t *testing.T, g *WithT) {
		hosts, hanging := realmHosts(t, 3)
		c := newClient(t, loginConfig(hosts...), proxmox.Options{})
		g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())

		hanging.Store(true)
		time.Sleep(61 * time.Minute)
		g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
		expectUsed(t, g, c, hosts)
	})
}

// expectUsed checks that requests use all Hosts.
func expectUsed(t *testing.T, g Gomega, c proxmox.Client, hosts []*fakeHost) {
	t.Helper()
	var before []int
	for _, host := range hosts {
		before = append(before, len(host.requests()))
	}
	for range 2 * len(hosts) {
		g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
	}
	for i, host := range hosts {
		g.Expect(len(host.requests())).To(BeNumerically(">", before[i]), "URL %d is not used", i)
	}
}
