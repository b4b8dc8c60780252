// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

// Client accesses one Cluster. Every method is one API call unless documented
// otherwise, and every error is one of the typed errors of this package (see
// errors.go), so callers never parse texts.
//
// Methods that start a task return as soon as Proxmox accepts it. Only the end of
// the task shows whether it succeeded.
type Client interface {
	// Region returns the Cluster's name in the cloud config.
	Region() string
	// User returns the user that the client authenticates as: user@realm!token, or
	// user@realm. It makes no call, and returns "" if the file that holds the token
	// ID is unreadable.
	User() string

	ClusterClient
	NetworkClient
	GuestClient
	VMClient
	HAClient
	StorageClient
	TaskClient
	PowerClient
}

// Options are a client's settings other than its Cluster's config. The zero value
// is valid.
type Options struct {
	// Registerer registers the metrics; nil = none.
	Registerer prometheus.Registerer
	Log        logr.Logger
	// DialTimeout limits the time to connect, and again the TLS handshake.
	DialTimeout time.Duration
	// ResponseTimeout limits one attempt of a call.
	ResponseTimeout time.Duration
	// DialContext connects to a host; nil = TCP. Tests connect to a simulator in memory.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

const (
	userAgent = "karpenter-provider-proxmox"
	// apiPath is the path of the API on a Proxmox VE host.
	apiPath = "/api2/json"

	// DefaultDialTimeout is the default of Options.DialTimeout.
	DefaultDialTimeout = 5 * time.Second
	// DefaultResponseTimeout is longer than the 30 s of Proxmox's own proxy, whose
	// 596 is more specific than a timeout of the client.
	DefaultResponseTimeout = 45 * time.Second
)

func (o Options) withDefaults() Options {
	if o.DialTimeout == 0 {
		o.DialTimeout = DefaultDialTimeout
	}
	if o.ResponseTimeout == 0 {
		o.ResponseTimeout = DefaultResponseTimeout
	}
	return o
}

// client implements Client. Its parts share one caller.
type client struct {
	region string
	urls   []string
	user   *source

	clusterClient
	networkClient
	guestClient
	vmClient
	haClient
	storageClient
	taskClient
	powerClient
}

// New returns the client of one Cluster. It makes no call: see Check.
func New(cfg ClusterConfig, opts Options) (Client, error) {
	if err := cfg.normalize(); err != nil {
		return nil, fmt.Errorf("configuring the client of region %q: %w", cfg.Region, err)
	}
	opts = opts.withDefaults()
	connections, err := newConnections(cfg, opts)
	if err != nil {
		return nil, fmt.Errorf("configuring TLS for region %q: %w", cfg.Region, err)
	}
	metrics, err := newMetrics(opts.Registerer, cfg.Region)
	if err != nil {
		return nil, fmt.Errorf("registering metrics: %w", err)
	}
	log := opts.Log.WithValues("region", cfg.Region)
	hosts := &failover{next: connections, urls: newURLPool(cfg.URLs, log), timeout: opts.ResponseTimeout}
	calls := &caller{hosts: hosts, metrics: metrics}
	user := &source{inline: cfg.TokenID, path: cfg.TokenIDFile}
	if cfg.Username != "" {
		user = &source{inline: cfg.Username}
		calls.auth = newTicket(cfg, &caller{hosts: hosts, metrics: metrics})
	} else {
		calls.auth = newToken(cfg, log)
	}
	return &client{
		region: cfg.Region, urls: cfg.URLs, user: user,
		clusterClient: clusterClient{calls, &quorum{}}, networkClient: networkClient{calls}, guestClient: guestClient{calls},
		vmClient: vmClient{calls}, haClient: haClient{calls}, storageClient: storageClient{calls}, taskClient: taskClient{calls},
		powerClient: powerClient{calls},
	}, nil
}

func (c *client) Region() string { return c.region }

func (c *client) URLHosts() []string {
	hosts := make([]string, 0, len(c.urls))
	for _, text := range c.urls {
		if parsed, err := url.Parse(text); err == nil { // the config is validated
			hosts = append(hosts, parsed.Hostname())
		}
	}
	return hosts
}

func (c *client) User() string {
	// An unreadable file fails every call, with the cause.
	user, _ := c.user.read()
	return user
}
