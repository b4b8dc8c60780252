// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/wire"
)

const (
	anyPort = "127.0.0.1:0"
	// defaultStallTimeout is that of Proxmox.
	defaultStallTimeout = 5 * time.Second
)

// endpoint is an address at which a host serves the API.
type endpoint struct {
	listener *wire.Listener
	server   *http.Server
	handler  *wire.Server
}

func (e *endpoint) url() string { return "https://" + e.listener.Addr().String() + "/api2/json" }

// listen opens the endpoint of a host, or of the cluster if the host is empty. It serves no requests yet.
func (s *Simulator) listen(ctx context.Context, host, address string) (*endpoint, error) {
	l, err := s.listener(ctx, address)
	if err != nil {
		return nil, err
	}
	cert, err := s.ca.issue(l.Addr())
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	handler := &wire.Server{Kernel: s.engine.Kernel, Fault: s.faults.onCall, Record: s.requests.add, Host: host, StallTimeout: s.options.StallTimeout}
	return &endpoint{
		listener: &wire.Listener{Listener: l, Config: &tls.Config{
			Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
			CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256}, // as OpenSSL 3.0: post-quantum key exchange costs CPU time
		}},
		server: &http.Server{
			Handler: handler, IdleTimeout: s.options.StallTimeout, ReadHeaderTimeout: 30 * time.Second, ConnContext: wire.ConnContext,
			MaxHeaderBytes: 8 << 10, ErrorLog: log.New(io.Discard, "", 0),
		},
		handler: handler,
	}, nil
}

func (s *Simulator) listener(ctx context.Context, address string) (net.Listener, error) {
	if s.options.InMemory {
		return s.memory.Listen(), nil
	}
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// serve starts to serve requests at an endpoint until Close. The caller holds the mutex.
func (s *Simulator) serve(e *endpoint) {
	s.endpoints[e.handler.Host] = e
	s.done.Go(func() { _ = e.server.Serve(e.listener) })
}

// HostURL returns the base URL of the API of one host and starts to serve it. Requests to it are served from the view
// of that host, and get no response while the host is down. It fails if there is no such host or the simulator does
// not run.
func (s *Simulator) HostURL(host string) (string, error) {
	e, err := s.hostEndpoint(host)
	if err != nil {
		return "", fmt.Errorf("serving the API of host %q: %w", host, err)
	}
	return e.url(), nil
}

func (s *Simulator) hostEndpoint(host string) (*endpoint, error) {
	known := false
	for _, h := range s.scenario.Hosts {
		known = known || h.Name == host
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !known:
		return nil, errors.New("there is no such host")
	case len(s.endpoints) == 0 || s.closed:
		return nil, errors.New("the simulator does not run")
	case s.endpoints[host] != nil:
		return s.endpoints[host], nil
	}
	e, err := s.listen(context.Background(), host, anyPort)
	if err != nil {
		return nil, err
	}
	s.serve(e)
	return e, nil
}

// SetHang sets whether the API of a host hangs: it accepts connections, completes the TLS handshake and never responds.
// Requests to it have no effect. It affects only the URL that HostURL returns; other hosts reach the host as before.
func (s *Simulator) SetHang(host string, hang bool) error {
	e, err := s.hostEndpoint(host)
	if err != nil {
		return fmt.Errorf("setting whether host %q hangs: %w", host, err)
	}
	e.handler.SetHang(hang)
	return nil
}

// Partition cuts the network between the named hosts and all others until Heal is called. Each host (see HostURL) then
// has the view of its part. A part without more than half of the hosts has no quorum: it accepts no changes, shows all
// hosts as unknown and does not list guests of other hosts.
func (s *Simulator) Partition(hosts ...string) error { return s.engine.Partition(hosts...) }

// Heal ends a partition.
func (s *Simulator) Heal() { _ = s.engine.Partition() }

// endpointRoutes adds the routes of the admin API for endpoints of hosts.
func (s *Simulator) endpointRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /hosts/{host}/url", func(w http.ResponseWriter, r *http.Request) {
		url, err := s.HostURL(r.PathValue("host"))
		if err != nil {
			respond(w, err)
			return
		}
		writeJSON(w, map[string]string{"url": url})
	})
	mux.HandleFunc("POST /hosts/{host}/hang", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetHang(r.PathValue("host"), true))
	})
	mux.HandleFunc("DELETE /hosts/{host}/hang", func(w http.ResponseWriter, r *http.Request) {
		respond(w, s.SetHang(r.PathValue("host"), false))
	})
	mux.HandleFunc("POST /partition", func(w http.ResponseWriter, r *http.Request) {
		hosts := strings.FieldsFunc(r.FormValue("hosts"), func(c rune) bool { return c == ',' })
		if len(hosts) == 0 {
			respond(w, errors.New(`hosts: found none, want names separated by ","`))
			return
		}
		respond(w, s.Partition(hosts...))
	})
	mux.HandleFunc("DELETE /partition", func(w http.ResponseWriter, _ *http.Request) { s.Heal(); writeJSON(w, nil) })
}
