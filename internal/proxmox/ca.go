// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"net/http"
	"strings"
	"sync"
)

// newConnections returns the connections to a Cluster. They use the current content
// of the CA file if the config has one.
func newConnections(cfg ClusterConfig, opts Options) (http.RoundTripper, error) {
	connections, err := newHTTPTransport(cfg, opts)
	if err != nil || cfg.CAFile == "" {
		return connections, err
	}
	return &reloadingCA{cfg: cfg, opts: opts, file: source{path: cfg.CAFile}, pem: strings.TrimSpace(cfg.CA), current: connections}, nil
}

// reloadingCA replaces the connections when the CA file changes: crypto/tls reads its
// roots once, but the CA of a Cluster can change while the controller runs.
type reloadingCA struct {
	cfg  ClusterConfig
	opts Options
	file source

	mu      sync.Mutex
	pem     string
	current *http.Transport
}

// RoundTrip sends the request over a connection that trusts the current CA.
func (r *reloadingCA) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.connections().RoundTrip(req)
}

func (r *reloadingCA) connections() *http.Transport {
	pem, err := r.file.read()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil || pem == r.pem {
		return r.current
	}
	cfg := r.cfg
	cfg.CA = pem
	renewed, err := newHTTPTransport(cfg, r.opts)
	if err != nil {
		// The file may be incomplete: use the old CA until it is valid.
		return r.current
	}
	r.current.CloseIdleConnections()
	r.pem, r.current = pem, renewed
	r.opts.Log.Info("CA file changed", "region", r.cfg.Region, "file", r.cfg.CAFile)
	return r.current
}
