// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// partitioned is a Cluster with two URLs whose Hosts respond to their own requests.
type partitioned struct {
	proxmox.Client
	t    *testing.T
	urls [2]*fakeHost
	// healed is whether both Hosts reach pve3 again.
	healed atomic.Bool
}

// newPartitioned returns a Cluster whose Hosts respond with the given answers to requests
// for pve3.
func newPartitioned(t *testing.T, forwarded ...func(request) reply) *partitioned {
	t.Helper()
	c := &partitioned{t: t}
	for i := range c.urls {
		c.urls[i] = newFakeHost(t, func(r request) reply {
			if strings.HasPrefix(r.uri, "/nodes/pve3/") && !c.healed.Load() {
				return forwarded[i](r)
			}
			return works(r)
		})
	}
	c.Client = newClient(t, config(c.urls[:]...), proxmox.Options{ResponseTimeout: 15 * time.Second})
	return c
}

// forwarded returns how many requests for a Host each URL received.
func (c *partitioned) forwarded(host string) [2]int {
	var counts [2]int
	for i, url := range c.urls {
		others := func(r request) bool { return !strings.HasPrefix(r.uri, "/nodes/"+host+"/") }
		counts[i] = len(slices.DeleteFunc(url.requests(), others))
	}
	return counts
}

// A URL whose Host responds, but does not reach another Host, is avoided for that Host.
func TestFailoverPartitionedHost(t *testing.T) {
	t.Parallel()
	read := func(c *partitioned, host string) error { _, err := c.VMConfig(c.t.Context(), host, 200); return err }
	write := func(c *partitioned, host string) error { _, err := c.StartVM(c.t.Context(), host, 200); return err }
	noRoute := always(reply{status: 595, reason: "No route to host", header: pveServer})
	brokenOff := always(reply{status: 596, reason: "Connection timed out", header: pveServer})
	for name, test := range map[string]struct {
		answer func(request) reply
		call   func(*partitioned, string) error
		// want is the error of the first call. One without an error was sent through both URLs.
		want error
	}{
		"refused_read":    {answer: noRoute, call: read},
		"hanging_read":    {answer: hangs, call: read},
		"broken_off_read": {answer: brokenOff, call: read, want: proxmox.ErrHostUnreachable},
		"refused_write":   {answer: noRoute, call: write, want: proxmox.ErrHostUnreachable},
		"hanging_write":   {answer: hangs, call: write, want: proxmox.ErrUnknownOutcome},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			c := newPartitioned(t, test.answer, works)
			err, sent := test.call(c, "pve3"), 1
			if test.want != nil {
				sent = 0
			}
			g.Expect(errors.Is(err, test.want)).To(BeTrue(), "%v", err)
			g.Expect(c.forwarded("pve3")).To(Equal([2]int{1, sent}))
			for range 4 {
				g.Expect(test.call(c, "pve3")).To(Succeed())
				g.Expect(write(c, "pve3")).To(Succeed())
			}
			g.Expect(c.forwarded("pve3")).To(Equal([2]int{1, sent + 8}), "the URL is used again for the host that it does not reach")
			for range 4 {
				g.Expect(read(c, "pve2")).To(Succeed())
			}
			g.Expect(c.forwarded("pve2")).To(Equal([2]int{2, 2}), "the URL is not used for a host that it reaches")

			// Only a read tries the URL again.
			c.healed.Store(true)
			time.Sleep(5 * time.Minute)
			for range 4 {
				g.Expect(write(c, "pve3")).To(Succeed())
			}
			g.Expect(c.forwarded("pve3")).To(Equal([2]int{1, sent + 12}))
			for range 4 {
				g.Expect(read(c, "pve3")).To(Succeed())
				g.Expect(write(c, "pve3")).To(Succeed())
			}
			g.Expect(c.forwarded("pve3")[0]).To(BeNumerically(">=", 3), "the URL is not used although it reaches the host again")
		})
	}

	runSimulated(t, "retried", func(t *testing.T, g *WithT) {
		c := newPartitioned(t, noRoute, works)
		for tries := range 3 {
			for range 4 {
				g.Expect(read(c, "pve3")).To(Succeed())
			}
			g.Expect(c.forwarded("pve3")).To(Equal([2]int{tries + 1, (tries + 1) * 4}))
			time.Sleep(5 * time.Minute)
		}
	})

	// A Host that is down is not reached through any URL, so none is avoided.
	runSimulated(t, "host_down", func(t *testing.T, g *WithT) {
		c := newPartitioned(t, noRoute, noRoute)
		g.Expect(read(c, "pve3")).To(MatchError(proxmox.ErrHostUnreachable))
		g.Expect(c.forwarded("pve3")).To(Equal([2]int{1, 1}))
		for range 4 {
			g.Expect(read(c, "pve3")).To(MatchError(proxmox.ErrHostUnreachable))
			g.Expect(write(c, "pve3")).To(MatchError(proxmox.ErrHostUnreachable))
		}
		g.Expect(c.forwarded("pve3")).To(Equal([2]int{5, 5}), "both URLs share the requests, and each is sent once")
		for range 4 {
			g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
		}
		g.Expect(c.urls[0].requests()).To(HaveLen(7))
		g.Expect(c.urls[1].requests()).To(HaveLen(7))
	})
}
