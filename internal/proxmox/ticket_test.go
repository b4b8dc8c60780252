// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// realmHost issues and accepts tickets. While its realm hangs, it does not respond to logins.
func realmHost(t *testing.T) (host *fakeHost, hanging *atomic.Bool) {
	t.Helper()
	hanging = &atomic.Bool{}
	return newFakeHost(t, func(r request) reply {
		switch {
		case r.uri == "/access/ticket" && hanging.Load():
			return hangs(r)
		case r.uri == "/access/ticket":
			return data(`{"username":"k@ldap","ticket":"PVE:k@ldap:1","CSRFPreventionToken":"csrf"}`)
		case r.header.Get("Cookie") == "":
			return reply{status: 401, reason: "No ticket"}
		}
		return data(version)
	}), hanging
}

// sentLogins returns the number of logins that a Host received.
func sentLogins(host *fakeHost) int {
	count := 0
	for _, r := range host.requests() {
		if r.uri == "/access/ticket" {
			count++
		}
	}
	return count
}

// While the realm hangs, requests use the ticket as long as it is valid.
func TestLoginHanging(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	host, hanging := realmHost(t)
	clock := testclock.NewFakePassiveClock(time.Now())
	c := newClient(t, loginConfig(host), proxmox.Options{Clock: clock})
	call := func() error {
		_, err := c.Version(withTimeout(t, time.Minute))
		return err
	}
	g.Expect(call()).To(Succeed())

	hanging.Store(true)
	clock.SetTime(clock.Now().Add(61 * time.Minute))
	renewal := make(chan error, 1)
	go func() { renewal <- call() }()
	g.Eventually(func() int { return sentLogins(host) }).WithTimeout(time.Minute).Should(Equal(2))
	g.Expect(call()).To(Succeed(), "the request waited for the renewal")
	g.Expect(<-renewal).To(Succeed(), "the renewal left no time for the request")
	g.Expect(call()).To(Succeed())
	g.Expect(sentLogins(host)).To(Equal(2), "the renewal was repeated within a minute")

	hanging.Store(false)
	clock.SetTime(clock.Now().Add(time.Minute))
	g.Expect(call()).To(Succeed())
	g.Expect(sentLogins(host)).To(Equal(3), "the renewal was not repeated after a minute")
	clock.SetTime(clock.Now().Add(59 * time.Minute))
	g.Expect(call()).To(Succeed())
	g.Expect(sentLogins(host)).To(Equal(3), "the new ticket is not used")
}

// A URL whose Host waits for the realm works.
func TestLoginHangingURLs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	first, firstHangs := realmHost(t)
	second, secondHangs := realmHost(t)
	cfg := loginConfig(first)
	cfg.URLs = append(cfg.URLs, second.server.URL)
	c := newClient(t, cfg, proxmox.Options{ResponseTimeout: 10 * time.Second})

	firstHangs.Store(true)
	secondHangs.Store(true)
	_, err := c.Version(withTimeout(t, 2*time.Minute))
	g.Expect(err).To(MatchError(proxmox.ErrUnreachable))

	firstHangs.Store(false)
	secondHangs.Store(false)
	before := []int{len(first.requests()), len(second.requests())}
	for range 4 {
		_, err := c.Version(testContext(t))
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(len(first.requests())).To(BeNumerically(">", before[0]), "the URL is not used")
	g.Expect(len(second.requests())).To(BeNumerically(">", before[1]), "the URL is not used")
}
