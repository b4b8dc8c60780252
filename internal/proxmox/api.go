// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-logr/logr"
	goproxmox "github.com/luthermonson/go-proxmox"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

const (
	userAgent = "karpenter-provider-proxmox"
	// apiPath is where a Proxmox VE API lives below its host.
	apiPath = "/api2/json"

	defaultDialTimeout = 5 * time.Second
	// defaultResponseTimeout lets Proxmox's own 30 s proxy timeout come first:
	// its 596 says more than our giving up.
	defaultResponseTimeout = 45 * time.Second
)

// Options are what a client needs beside its Cluster's config. The zero value works.
type Options struct {
	// Registerer takes the metrics; nil = none.
	Registerer prometheus.Registerer
	Log        logr.Logger
	// DialTimeout is for a connection, DialTimeout again for its TLS handshake.
	DialTimeout time.Duration
	// ResponseTimeout is for one attempt at a call.
	ResponseTimeout time.Duration
	// Clock tells the age of a login.
	Clock clock.PassiveClock
}

func (o Options) withDefaults() Options {
	if o.DialTimeout == 0 {
		o.DialTimeout = defaultDialTimeout
	}
	if o.ResponseTimeout == 0 {
		o.ResponseTimeout = defaultResponseTimeout
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// client implements Client.
type client struct {
	region  string
	urls    []string
	user    *source
	http    *http.Client
	api     *goproxmox.Client
	metrics *metrics
}

var _ Client = (*client)(nil)

// New makes the client of one Cluster. It makes no call: see Check.
func New(cfg ClusterConfig, opts Options) (Client, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("configuring the client of region %q, %w", cfg.Region, err)
	}
	opts = opts.withDefaults()
	connections, err := newConnections(cfg, opts)
	if err != nil {
		return nil, fmt.Errorf("configuring TLS for region %q, %w", cfg.Region, err)
	}
	metrics, err := newMetrics(opts.Registerer, cfg.Region)
	if err != nil {
		return nil, fmt.Errorf("registering metrics, %w", err)
	}
	log := opts.Log.WithValues("region", cfg.Region)
	hosts := &failover{next: connections, timeout: opts.ResponseTimeout, log: log}
	for _, text := range cfg.URLs {
		base, err := url.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("parsing a URL of region %q, %w", cfg.Region, err)
		}
		hosts.bases = append(hosts.bases, base)
	}

	c := &client{region: cfg.Region, urls: cfg.URLs, metrics: metrics}
	c.user = &source{inline: cfg.TokenID, path: cfg.TokenIDFile}
	var auth authorizer
	if cfg.Username != "" {
		login := c.goProxmox(&http.Client{Transport: &transport{next: hosts, metrics: metrics}})
		auth = newTicket(cfg, login, opts.Clock)
		c.user = &source{inline: cfg.Username}
	} else {
		auth = newToken(cfg, log)
	}
	c.http = &http.Client{Transport: &transport{next: hosts, auth: auth, metrics: metrics}}
	c.api = c.goProxmox(c.http)
	return c, nil
}

func (c *client) goProxmox(h *http.Client, more ...goproxmox.Option) *goproxmox.Client {
	options := append([]goproxmox.Option{goproxmox.WithHTTPClient(h), goproxmox.WithUserAgent(userAgent)}, more...)
	return goproxmox.NewClient(c.urls[0], options...)
}

// Region is the name that the cloud config gives this Cluster.
func (c *client) Region() string { return c.region }

// User is whom Proxmox takes us for.
func (c *client) User() string {
	// A file that cannot be read fails the calls, with more to say.
	user, _ := c.user.read()
	return user
}

func (c *client) get(ctx context.Context, e endpoint, out any) error {
	return c.do(ctx, e, func(ctx context.Context) error { return c.api.Get(ctx, e.String(), out) }, ErrFailed)
}

// parameters is the body of a write. Every value goes as text: Proxmox takes
// "1" for a number and a boolean, whatever the encoding.
type parameters map[string]string

func (c *client) post(ctx context.Context, e endpoint, body parameters, out any) error {
	return c.do(ctx, e, func(ctx context.Context) error { return c.api.Post(ctx, e.String(), orNothing(body), out) }, ErrUnknownOutcome)
}

func (c *client) put(ctx context.Context, e endpoint, body parameters, out any) error {
	return c.do(ctx, e, func(ctx context.Context) error { return c.api.Put(ctx, e.String(), orNothing(body), out) }, ErrUnknownOutcome)
}

func (c *client) delete(ctx context.Context, e endpoint, out any) error {
	return c.do(ctx, e, func(ctx context.Context) error { return c.api.Delete(ctx, e.String(), out) }, ErrUnknownOutcome)
}

// do makes a call. unread is the kind of an answer that came but cannot be
// understood: of a write it is not known what it did.
func (c *client) do(ctx context.Context, e endpoint, call func(context.Context) error, unread error) error {
	if e.missing != "" {
		return &InvalidError{Parameters: map[string]string{e.missing: "empty"}, Message: "the path parameter " + e.missing + " is empty"}
	}
	err := call(withEndpoint(ctx, e))
	if err == nil {
		return nil
	}
	if known := typed(err); known != nil {
		return known
	}
	return &failure{kind: unread, text: "the answer cannot be read: " + oneLine(err.Error())}
}

// orNothing avoids a body of "null", which Proxmox refuses.
func orNothing(body parameters) any {
	if len(body) == 0 {
		return nil
	}
	return body
}

// started checks that a call which starts a task named one.
func started(upid UPID, err error) (UPID, error) {
	if err == nil && !upid.Valid() {
		return "", &failure{kind: ErrUnknownOutcome, text: fmt.Sprintf("Proxmox named no task but %q", string(upid))}
	}
	return upid, err
}
