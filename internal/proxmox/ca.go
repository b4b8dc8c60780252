// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"net/http"
	"strings"
	"sync/atomic"
)

// newConnections returns the connections to a Cluster. They use the current content
// of the CA file if the config has one.
func newConnections(cfg ClusterConfig, opts Options) (http.RoundTripper, error) {
	connections, err := newHTTPTransport(cfg, opts)
	if err != nil || cfg.CAFile == "" {
		return connections, err
	}
	r := &reloadingCA{cfg: cfg, opts: opts, file: source{path: cfg.CAFile}}
	r.current.Store(&trustedConnections{strings.TrimSpace(cfg.CA), connections})
	return r, nil
}

// trustedConnections are connections that trust a CA.
type trustedConnections struct {
	pem string
	*http.Transport
}

// reloadingCA replaces the connections when the CA file changes: crypto/tls reads its
// roots once, but the CA of a Cluster can change while the controller runs.
type reloadingCA struct {
	cfg  ClusterConfig
	opts Options
	file source

	current atomic.Pointer[trustedConnections]
}

// RoundTrip sends the request over a connection that trusts the current CA.
func (r *reloadingCA) RoundTrip(req *http.Request) (*http.Response, error) {
	return r.connections().RoundTrip(req)
}

func (r *reloadingCA) connections() *http.Transport {
	pem, err := r.file.read()
	current := r.current.Load()
	if err != nil || pem == current.pem {
		return current.Transport
	}
	cfg := r.cfg
	cfg.CA = pem
	renewed, err := newHTTPTransport(cfg, r.opts)
	if err != nil {
		// The file may be incomplete: use the old CA until it is valid.
		return current.Transport
	}
	if !r.current.CompareAndSwap(current, &trustedConnections{pem, renewed}) {
		return r.current.Load().Transport // of another request
	}
	current.CloseIdleConnections()
	r.opts.Log.Info("CA file changed", "region", r.cfg.Region, "file", r.cfg.CAFile)
	return renewed
}
