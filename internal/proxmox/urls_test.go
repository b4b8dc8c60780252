// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// hangs never responds.
var hangs = always(reply{status: 200, body: `{"data":null}`, wait: time.Hour})

const nodeRow = `{"type":"node","node":"pve1","status":"online","maxcpu":4,"maxmem":1024}`

func withTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestFailoverRetriesFailedURL(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		var broken atomic.Bool
		broken.Store(true)
		answer := func(r request) reply {
			if r.uri == "/cluster/resources" {
				return data("[" + nodeRow + "]")
			}
			return works(r)
		}
		flaky := newFakeHost(t, func(r request) reply {
			if broken.Load() {
				return reply{drop: true}
			}
			return answer(r)
		})
		up := newFakeHost(t, answer)
		c := newClient(t, config(flaky, up), proxmox.Options{})
		read := func() int {
			t.Helper()
			for range 4 {
				g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
			}
			g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred())
			return len(flaky.requests())
		}
		g.Expect(read()).To(Equal(1))
		g.Expect(read()).To(Equal(1), "used again before its backoff ended")
		time.Sleep(time.Minute)
		g.Expect(read()).To(Equal(2), "only a poll checks whether it responds again")
		broken.Store(false)
		time.Sleep(time.Minute)
		g.Expect(read()).To(Equal(3))
		g.Expect(read()).To(BeNumerically(">", 3), "not used after it responded")
	})
}

func TestConnectionLimit(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		var open atomic.Int32
		release := make(chan struct{})
		host := newFakeHost(t, func(r request) reply {
			if strings.Contains(r.uri, "/cluster/resources") {
				return data(`[]`)
			}
			open.Add(1)
			defer open.Add(-1)
			<-release
			return data(version)
		})
		c := newClient(t, config(host), proxmox.Options{})
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				g.Expect(c.Version(withTimeout(t, 40*time.Second))).Error().NotTo(HaveOccurred())
			})
		}
		synctest.Wait()
		g.Expect(open.Load()).To(BeEquivalentTo(proxmox.MaxConnections))
		g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred(), "a poll does not wait for other requests")
		close(release)
		wg.Wait()
	})
}

// A Host that hangs does not answer what other Hosts forward to it. Their URLs work.
func TestHangingHost(t *testing.T) {
	t.Parallel()
	gatewayTimeout := always(reply{status: 504, header: htmlType, body: "<html>"})
	read, write := bind2(client.VMConfig, "pve3", 200), bind2(client.StartVM, "pve3", 200)
	for name, test := range map[string]struct {
		// forwarded are the answers of both URLs to requests for the Host.
		forwarded [2]func(request) reply
		// hangs is whether the first URL does not respond at all.
		hangs bool
		call  call
		want  error
	}{
		"read":              {forwarded: [2]func(request) reply{hangs, hangs}, call: read, want: proxmox.ErrUnreachable},
		"slow_read":         {forwarded: [2]func(request) reply{hangs, works}, call: read},
		"write":             {forwarded: [2]func(request) reply{hangs, hangs}, call: write, want: proxmox.ErrUnknownOutcome},
		"load_balancer":     {forwarded: [2]func(request) reply{gatewayTimeout, works}, call: read},
		"read_of_dead_URL":  {forwarded: [2]func(request) reply{hangs, works}, hangs: true, call: read},
		"write_to_dead_URL": {forwarded: [2]func(request) reply{hangs, hangs}, hangs: true, call: write, want: proxmox.ErrUnknownOutcome},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			var hosts [2]*fakeHost
			for i := range hosts {
				hosts[i] = newFakeHost(t, func(r request) reply {
					switch {
					case strings.Contains(r.uri, "/nodes/"):
						return test.forwarded[i](r)
					case i == 0 && test.hangs:
						return hangs(r)
					}
					return data(version)
				})
			}
			c := newClient(t, config(hosts[:]...), proxmox.Options{ResponseTimeout: 10 * time.Second})
			_, err := test.call(withTimeout(t, 2*time.Minute), c)
			g.Expect(errors.Is(err, test.want)).To(BeTrue(), "%v", err)
			before := len(hosts[0].requests())
			for range 4 {
				g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
			}
			used := map[bool]int{true: 0, false: 2}[test.hangs]
			g.Expect(hosts[0].requests()).To(HaveLen(before+used), "a URL that hangs itself is not used again, otherwise both are")
		})
	}
}

func TestQuorum(t *testing.T) {
	t.Parallel()
	runSimulated(t, "minority_first", func(t *testing.T, g *WithT) {
		sim, _ := simulate(t, "8.4", func(s *pvesim.Scenario) { *s = *pvesim.DefaultScenario(3) })
		cfg := simConfig(sim)
		cfg.URLs = nil
		for _, host := range []string{"pve1", "pve2"} {
			url, err := sim.HostURL(host)
			g.Expect(err).NotTo(HaveOccurred())
			cfg.URLs = append(cfg.URLs, url)
		}
		c := newClient(t, cfg, proxmox.Options{DialContext: sim.DialContext})
		g.Expect(sim.Partition("pve1")).To(Succeed())
		resources, err := c.Resources(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resources.Guests).To(HaveLen(6), "the list of the minority was used")
		g.Expect(resources.Hosts).To(HaveExactElements(HaveField("Online", false), HaveField("Online", true), HaveField("Online", true)))

		sim.ResetRequests()
		for range 3 {
			g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred())
			g.Expect(c.VMConfig(t.Context(), "pve2", 102)).Error().NotTo(HaveOccurred())
		}
		g.Expect(sim.Requests()).To(HaveEach(HaveField("Host", "pve2")), "the minority is not used")
		g.Expect(sim.CountRequests("GET", "/cluster/status")).To(BeZero(), "quorum was read again although no other host went offline")

		sim.SetQuorum(false)
		g.Expect(c.Resources(t.Context())).Error().To(And(MatchError(proxmox.ErrNoQuorum), MatchError(ContainSubstring("pve"))))
		sim.SetQuorum(true)
		time.Sleep(time.Minute)
		g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred())
	})
	runSimulated(t, "refused_write", func(t *testing.T, g *WithT) {
		answers := func(request) reply { return failed(500, "cluster not ready - no quorum?") }
		minority, majority := newFakeHost(t, answers), newFakeHost(t, works)
		c := newClient(t, config(minority, majority), proxmox.Options{})
		for range 2 {
			g.Expect(c.StartVM(t.Context(), "pve2", 200)).Error().NotTo(HaveOccurred(), "the refused request has no effect and can be sent to the next URL")
		}
		alone := newClient(t, config(minority), proxmox.Options{})
		g.Expect(alone.StartVM(t.Context(), "pve2", 200)).Error().To(MatchError(proxmox.ErrNoQuorum))
	})
	runSimulated(t, "unknown_without_Sys.Audit", func(t *testing.T, g *WithT) {
		rows := `[` + nodeRow + `,{"type":"node","node":"pve2","status":"offline"}]`
		var none atomic.Bool
		c, host := clientOf(t, func(r request) reply {
			switch {
			case r.uri == "/cluster/status":
				return failed(403, "Permission check failed (/, Sys.Audit)")
			case none.Load():
				return data(`[{"type":"node","node":"pve1","status":"unknown"},{"type":"node","node":"pve2","status":"unknown"}]`)
			}
			return data(rows)
		})
		g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred())
		none.Store(true)
		g.Expect(c.Resources(t.Context())).Error().To(MatchError(proxmox.ErrNoQuorum), "a Host with quorum knows its own status")
		g.Expect(host.requests()).To(HaveLen(4))
	})
}
