// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"maps"
	"slices"
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

func TestFailoverOfHangingURL(t *testing.T) {
	t.Parallel()
	runSimulated(t, "read", func(t *testing.T, g *WithT) {
		hanging, up := newFakeHost(t, hangs), newFakeHost(t, always(data(version)))
		c := newClient(t, config(hanging, up), proxmox.Options{})
		g.Expect(c.Version(withTimeout(t, 20*time.Second))).Error().NotTo(HaveOccurred(), "the deadline must leave time for the second URL")

		g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
		g.Expect(len(hanging.requests())).To(BeNumerically("<=", 1), "the URL that hangs is not used again")
	})
	runSimulated(t, "write", func(t *testing.T, g *WithT) {
		hanging, up := newFakeHost(t, hangs), newFakeHost(t, always(data(`"`+testUPID+`"`)))
		c := newClient(t, config(hanging, up), proxmox.Options{})
		_, err := c.StartVM(withTimeout(t, 20*time.Second), "pve1", 200)
		g.Expect(err).To(And(MatchError(proxmox.ErrUnknownOutcome), MatchError(context.DeadlineExceeded)))
		g.Expect(up.requests()).To(BeEmpty(), "a write that may have arrived is not repeated")

		for range 4 {
			g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().NotTo(HaveOccurred())
		}
		g.Expect(hanging.writes()).To(HaveLen(1), "the URL that hangs is not used again")
	})
}

func TestFailoverRetriesFailedURL(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		var broken atomic.Bool
		broken.Store(true)
		answer := func(r request) reply {
			if r.uri == "/cluster/resources" {
				return data("[" + nodeRow + "]")
			}
			return data(version)
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

func TestSpreadOverURLs(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		hosts := []*fakeHost{}
		for range 3 {
			hosts = append(hosts, newFakeHost(t, always(data(`"`+testUPID+`"`))))
		}
		c := newClient(t, config(hosts...), proxmox.Options{})
		for range 30 {
			g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().NotTo(HaveOccurred())
		}
		for _, h := range hosts {
			g.Expect(h.requests()).To(HaveLen(10))
		}
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
	read := func(ctx context.Context, c proxmox.Client) error { _, err := c.VMConfig(ctx, "pve3", 200); return err }
	write := func(ctx context.Context, c proxmox.Client) error { _, err := c.StartVM(ctx, "pve3", 200); return err }
	for name, test := range map[string]struct {
		// forwarded are the answers of both URLs to requests for the Host.
		forwarded [2]func(request) reply
		// hangs is whether the first URL does not respond at all.
		hangs bool
		call  func(context.Context, proxmox.Client) error
		want  error
	}{
		"read":              {forwarded: [2]func(request) reply{hangs, hangs}, call: read, want: proxmox.ErrUnreachable},
		"slow_read":         {forwarded: [2]func(request) reply{hangs, always(data(`{}`))}, call: read},
		"write":             {forwarded: [2]func(request) reply{hangs, hangs}, call: write, want: proxmox.ErrUnknownOutcome},
		"load_balancer":     {forwarded: [2]func(request) reply{gatewayTimeout, always(data(`{}`))}, call: read},
		"read_of_dead_URL":  {forwarded: [2]func(request) reply{hangs, always(data(`{}`))}, hangs: true, call: read},
		"write_to_dead_URL": {forwarded: [2]func(request) reply{hangs, hangs}, hangs: true, call: write, want: proxmox.ErrUnknownOutcome},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			var hosts []*fakeHost
			for i := range 2 {
				hosts = append(hosts, newFakeHost(t, func(r request) reply {
					switch {
					case strings.Contains(r.uri, "/nodes/"):
						return test.forwarded[i](r)
					case i == 0 && test.hangs:
						return hangs(r)
					}
					return data(version)
				}))
			}
			c := newClient(t, config(hosts...), proxmox.Options{ResponseTimeout: 10 * time.Second})
			err := test.call(withTimeout(t, 2*time.Minute), c)
			if test.want == nil {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(test.want))
			}
			before := len(hosts[0].requests())
			for range 4 {
				g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
			}
			if test.hangs {
				g.Expect(hosts[0].requests()).To(HaveLen(before), "a URL that hangs itself is not used again")
			} else {
				g.Expect(hosts[0].requests()).To(HaveLen(before+2), "both URLs work")
			}
		})
	}
}

// hostURLs returns the config of a client with the URLs of these Hosts.
func hostURLs(t *testing.T, sim *pvesim.Simulator, hosts ...string) proxmox.ClusterConfig {
	t.Helper()
	cfg := simConfig(sim)
	cfg.URLs = nil
	for _, host := range hosts {
		url, err := sim.HostURL(host)
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		cfg.URLs = append(cfg.URLs, url)
	}
	return cfg
}

// requestsTo returns the number of requests by the Host that received them.
func requestsTo(sim *pvesim.Simulator) map[string]int {
	counts := map[string]int{}
	for _, r := range sim.Requests() {
		counts[r.Host]++
	}
	return counts
}

func TestQuorum(t *testing.T) {
	t.Parallel()
	three := func(s *pvesim.Scenario) { *s = *pvesim.DefaultScenario(3) }
	runSimulated(t, "minority_first", func(t *testing.T, g *WithT) {
		sim, _ := simulate(t, "8.4", three)
		c := newClient(t, hostURLs(t, sim, "pve1", "pve2"), proxmox.Options{DialContext: sim.DialContext})
		g.Expect(sim.Partition("pve1")).To(Succeed())
		resources, err := c.Resources(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(resources.Guests).To(HaveLen(6), "the list of the minority was used")
		online := map[string]bool{}
		for _, host := range resources.Hosts {
			online[host.Name] = host.Online
		}
		g.Expect(online).To(Equal(map[string]bool{"pve1": false, "pve2": true, "pve3": true}))

		sim.ResetRequests()
		for range 3 {
			g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred())
			g.Expect(c.VMConfig(t.Context(), "pve2", 102)).Error().NotTo(HaveOccurred())
		}
		g.Expect(slices.Collect(maps.Keys(requestsTo(sim)))).To(ConsistOf("pve2"), "the minority is not used")
		g.Expect(sim.CountRequests("GET", "/cluster/status")).To(BeZero(), "quorum was read again although no other host went offline")
	})
	runSimulated(t, "refused_write", func(t *testing.T, g *WithT) {
		answers := func(request) reply { return failed(500, "cluster not ready - no quorum?") }
		minority, majority := newFakeHost(t, answers), newFakeHost(t, always(data(`"`+testUPID+`"`)))
		c := newClient(t, config(minority, majority), proxmox.Options{})
		for range 2 {
			g.Expect(c.StartVM(t.Context(), "pve2", 200)).Error().NotTo(HaveOccurred(), "the refused request has no effect and can be sent to the next URL")
		}
		alone := newClient(t, config(minority), proxmox.Options{})
		g.Expect(alone.StartVM(t.Context(), "pve2", 200)).Error().To(MatchError(proxmox.ErrNoQuorum))
	})
	runSimulated(t, "lost_and_regained", func(t *testing.T, g *WithT) {
		sim, _ := simulate(t, "9.2", three)
		c := newClient(t, hostURLs(t, sim, "pve1", "pve2"), proxmox.Options{DialContext: sim.DialContext})
		g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred())
		sim.SetQuorum(false)
		g.Expect(c.Resources(t.Context())).Error().To(And(MatchError(proxmox.ErrNoQuorum), MatchError(ContainSubstring("pve"))))
		sim.SetQuorum(true)
		time.Sleep(time.Minute)
		g.Expect(c.Resources(t.Context())).Error().NotTo(HaveOccurred())
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
