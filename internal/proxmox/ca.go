// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"net/http"
	"strings"
	"sync"
)

// newConnections makes the connections to a Cluster, which follow the CA file
// where there is one.
func newConnections(cfg ClusterConfig, opts Options) (http.RoundTripper, error) {
	connections, err := newHTTPTransport(cfg, opts)
	if err != nil || cfg.CAFile == "" {
		return connections, err
	}
	return &followingCA{cfg: cfg, opts: opts, file: source{path: cfg.CAFile}, pem: strings.TrimSpace(cfg.CA), current: connections}, nil
}

// followingCA makes new connections when the CA file changed: Go's TLS takes its
// roots once, and a Cluster gets a new CA while the controller runs.
type followingCA struct {
	cfg  ClusterConfig
	opts Options
	file source

	mu      sync.Mutex
	pem     string
	current *http.Transport
}

// RoundTrip sends the request over a connection that trusts the CA of now.
func (f *followingCA) RoundTrip(req *http.Request) (*http.Response, error) {
	return f.connections().RoundTrip(req)
}

func (f *followingCA) connections() *http.Transport {
	pem, err := f.file.read()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil || pem == f.pem {
		return f.current
	}
	cfg := f.cfg
	cfg.CA = pem
	renewed, err := newHTTPTransport(cfg, f.opts)
	if err != nil {
		// Half of a file: the old CA serves until the other half is there.
		return f.current
	}
	f.current.CloseIdleConnections()
	f.pem, f.current = pem, renewed
	f.opts.Log.Info("read a changed CA file", "region", f.cfg.Region, "file", f.cfg.CAFile)
	return f.current
}
