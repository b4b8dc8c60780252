// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const version = `{"version":"8.4.21","release":"8.4","repoid":"2606ac85"}`

func TestFailover(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		down, up := newFakeHost(t, works), newFakeHost(t, works)
		c := newClient(t, config(down, up), proxmox.Options{})
		down.server.Close()
		g.Expect(c.StartVM(t.Context(), "pve1", 200)).Error().NotTo(HaveOccurred(), "a write that was not sent")
		for range 3 {
			g.Expect(c.Version(t.Context())).To(Equal(proxmox.Version{Release: "8.4", Full: "8.4.21"}))
		}
		g.Expect(up.requests()).To(HaveLen(4))

		// The URL that worked goes down as well.
		up.server.Close()
		g.Expect(c.Version(t.Context())).Error().To(And(MatchError(proxmox.ErrUnreachable),
			MatchError(ContainSubstring(down.server.URL)), MatchError(ContainSubstring(up.server.URL))))
	})
}

func TestFailoverOfSentWrite(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		drops, up := newFakeHost(t, always(reply{drop: true})), newFakeHost(t, works)
		for _, write := range []call{
			bind2(client.StartVM, "pve1", 200),
			bind2(client.DestroyVM, "pve1", 200),
			func(ctx context.Context, c client) (any, error) {
				return nil, c.UpdateVM(ctx, "pve1", 200, proxmox.ConfigChange{Delete: []string{"ide2"}})
			},
			func(ctx context.Context, c client) (any, error) {
				return c.UploadISO(ctx, "pve1", "local", "a.iso", []byte("iso"))
			},
		} {
			// A new client has not seen the first URL fail.
			_, err := write(t.Context(), newClient(t, config(drops, up), proxmox.Options{}))
			g.Expect(err).To(MatchError(proxmox.ErrUnknownOutcome))
		}
		g.Expect(drops.requests()).To(HaveLen(4))
		g.Expect(up.requests()).To(BeEmpty())
	})
}

func TestFailoverTimeout(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		slow := newFakeHost(t, always(reply{status: 200, body: `{"data":null}`, wait: time.Minute}))
		c := newClient(t, config(slow), proxmox.Options{ResponseTimeout: 10 * time.Second})
		began := time.Now()
		g.Expect(c.Version(t.Context())).Error().To(MatchError(proxmox.ErrUnreachable))
		g.Expect(time.Since(began)).To(Equal(10 * time.Second))
		g.Expect(c.StopVM(t.Context(), "pve1", 200)).Error().To(MatchError(proxmox.ErrUnknownOutcome))
		g.Expect(time.Since(began)).To(Equal(20 * time.Second))
	})
}

// A caller that ends before there is a connection sends nothing.
func TestFailoverEndedBeforeConnection(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		// The listener does not respond, so the TLS handshake hangs.
		silent := network.Listen()
		t.Cleanup(func() { _ = silent.Close() })
		go func() {
			if conn, err := silent.Accept(); err == nil {
				<-t.Context().Done()
				_ = conn.Close()
			}
		}()
		cfg := config()
		cfg.URLs, cfg.Insecure = []string{"https://" + silent.Addr().String()}, true
		_, err := newClient(t, cfg, proxmox.Options{}).StartVM(withTimeout(t, 900*time.Millisecond), "pve1", 200)
		g.Expect(err).To(And(MatchError(proxmox.ErrNoTime), MatchError(context.DeadlineExceeded)))
	})
}

func TestFailoverCanceled(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		var calls atomic.Int32
		var cancelCaller atomic.Pointer[context.CancelFunc]
		answer := func(r request) reply {
			calls.Add(1)
			(*cancelCaller.Load())() // the caller cancels when the Host has the request
			response := works(r)
			response.wait = map[bool]time.Duration{true: time.Minute, false: 100 * time.Millisecond}[r.method == http.MethodGet]
			return response
		}
		c := newClient(t, config(newFakeHost(t, answer), newFakeHost(t, answer)), proxmox.Options{})
		canceledByHost := func() context.Context {
			ctx, cancel := context.WithCancel(t.Context())
			cancelCaller.Store(&cancel)
			return ctx
		}
		g.Expect(c.Version(canceledByHost())).Error().To(MatchError(context.Canceled))
		g.Expect(calls.Load()).To(BeEquivalentTo(1), "no request to the other URL after the caller canceled")

		ctx := canceledByHost()
		g.Expect(c.StartVM(ctx, "pve1", 200)).To(BeEquivalentTo(testUPID), "the response to a write is awaited")
		g.Expect(c.UploadISO(canceledByHost(), "pve1", "local", "a.iso", []byte("iso"))).To(BeEquivalentTo(testUPID))

		g.Expect(c.StartVM(ctx, "pve1", 200)).Error().To(And(MatchError(proxmox.ErrNoTime), MatchError(context.Canceled)), "nothing was sent")
		g.Expect(calls.Load()).To(BeEquivalentTo(3))
	})
}

func TestFailoverParallelCalls(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		first, second := newFakeHost(t, works), newFakeHost(t, works)
		c := newClient(t, config(first, second), proxmox.Options{})
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				if i == 10 {
					first.server.Close()
				}
				for range 3 {
					g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
				}
			})
		}
		wg.Wait()
		before := len(second.requests())
		g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
		g.Expect(second.requests()).To(HaveLen(before + 1))
	})
}

// The client closes an idle connection after 3 s, before Proxmox does.
func TestConnectionReuse(t *testing.T) {
	simulated(t, func(t *testing.T, g *WithT) {
		var connections atomic.Int32
		server := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"data":` + version + `}`))
		}))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		}
		server.StartTLS()
		cfg := config()
		cfg.URLs, cfg.Insecure = []string{server.URL}, true
		c := newClient(t, cfg, proxmox.Options{})
		for _, idle := range []time.Duration{0, 2900 * time.Millisecond, 2900 * time.Millisecond, 3100 * time.Millisecond} {
			time.Sleep(idle)
			g.Expect(c.Version(t.Context())).Error().NotTo(HaveOccurred())
		}
		g.Expect(connections.Load()).To(BeEquivalentTo(2))
	})
}
