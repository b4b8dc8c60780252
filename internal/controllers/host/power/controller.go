// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package power reports which Hosts could be shut down to save energy, what keeps the others
// awake, and how much energy that would save. It changes nothing in Proxmox.
package power

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// interval is how often decisions are made without a change of the inventory.
	interval = time.Minute
	// factsInterval is how often the Facts of a region are read.
	factsInterval = 5 * time.Minute
	// factsTimeout limits the time to read them.
	factsTimeout = time.Minute
)

// Deps are the dependencies of the Controller.
type Deps struct {
	Clients   map[string]proxmox.Client // by region
	Inventory *inventory.Inventory
	// KubeCluster is the UID of the Kubernetes cluster, which identifies its VMs.
	KubeCluster string
	Clock       clock.PassiveClock
	Registerer  prometheus.Registerer
}

// Controller reports which Hosts could be shut down.
type Controller struct {
	deps  Deps
	facts map[string]regionFacts // by region
	// idleSince is when a Host was first seen idle. It is lost with a restart, so a Host must
	// be idle again for its whole idle time.
	idleSince map[inventory.HostName]time.Time

	mu      sync.Mutex
	reports map[inventory.HostName]report
}

// regionFacts are Facts, when they were read, and the Hosts that they were read for.
type regionFacts struct {
	power.Facts
	read  time.Time
	hosts []string
}

// report is the last decision about a Host.
type report struct {
	power.Decision
	watts float64
}

// NewController returns a Controller. It panics if its metrics are already registered.
func NewController(deps Deps) *Controller {
	c := &Controller{deps: deps, facts: map[string]regionFacts{}, idleSince: map[inventory.HostName]time.Time{}, reports: map[inventory.HostName]report{}}
	deps.Registerer.MustRegister(c)
	return c
}

// Register registers the Controller with a manager.
func (c *Controller) Register(_ context.Context, m manager.Manager) error {
	if err := m.Add(manager.RunnableFunc(c.Start)); err != nil {
		return fmt.Errorf("adding the power report: %w", err)
	}
	return nil
}

// Start evaluates the Hosts after each change of the inventory until the context is canceled.
func (c *Controller) Start(ctx context.Context) error {
	changes := c.deps.Inventory.Subscribe(ctx)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		c.Evaluate(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		case <-ticker.C:
		}
	}
}

// Evaluate decides about all enrolled Hosts and reports what changed. Regions without enrolled
// Hosts cost no request.
func (c *Controller) Evaluate(ctx context.Context) {
	view, reports := c.deps.Inventory.View(), map[inventory.HostName]report{}
	for _, region := range c.deps.Inventory.Regions() {
		if snapshot := view.Snapshots[region]; snapshot != nil && isEnrolled(view, region) {
			c.evaluateRegion(ctx, view, region, reports)
		}
	}
	c.mu.Lock()
	before := c.reports
	c.reports = reports
	c.mu.Unlock()
	logChanges(ctx, before, reports)
}

// isEnrolled reports whether any Host of a region takes part in power management.
func isEnrolled(view inventory.View, region string) bool {
	return slices.ContainsFunc(view.Hosts(), func(host inventory.HostState) bool {
		return host.Region == region && host.Power.Mode != inventory.PowerNone
	})
}

func (c *Controller) evaluateRegion(ctx context.Context, view inventory.View, region string, reports map[inventory.HostName]report) {
	now := c.deps.Clock.Now()
	found := power.NewRegion(power.Source{
		View: view, Region: region, Facts: c.readFacts(ctx, view, region), KubeCluster: c.deps.KubeCluster, Now: now,
		IdleSince: func(host string) time.Time {
			name := inventory.HostName{Region: region, Host: host}
			if c.idleSince[name].IsZero() {
				c.idleSince[name] = now
			}
			return c.idleSince[name]
		},
	})
	watts := map[string]float64{}
	for _, host := range found.Hosts {
		watts[host.Name] = host.Watts()
		if host.IdleSince.IsZero() {
			delete(c.idleSince, inventory.HostName{Region: region, Host: host.Name})
		}
	}
	for _, decision := range power.Decide(found) {
		reports[inventory.HostName{Region: region, Host: decision.Host}] = report{decision, watts[decision.Host]}
	}
}

// readFacts returns the Facts of a region. It reads them again when they are too old, and when
// Hosts were enrolled or came online.
func (c *Controller) readFacts(ctx context.Context, view inventory.View, region string) power.Facts {
	facts, now, hosts := c.facts[region], c.deps.Clock.Now(), power.EnrolledHosts(view, region)
	if facts.read.IsZero() || now.Sub(facts.read) >= factsInterval || !slices.Equal(facts.hosts, hosts) {
		ctx, cancel := context.WithTimeout(ctx, factsTimeout)
		defer cancel()
		facts = regionFacts{power.ReadFacts(ctx, c.deps.Clients[region], view.Snapshots[region].Version, hosts), now, hosts}
		c.facts[region] = facts
	}
	return facts.Facts
}

// logChanges logs the Hosts whose decision has another action, or other types of reasons.
func logChanges(ctx context.Context, before, after map[inventory.HostName]report) {
	for name, now := range after {
		was, known := before[name]
		if known && was.Action == now.Action && reasonTypes(was) == reasonTypes(now) {
			continue
		}
		logger := log.FromContext(ctx).WithValues("region", name.Region, "host", name.Host)
		if now.Action == power.Sleep {
			logger.Info("host could be shut down to save energy", "watts", now.watts)
			continue
		}
		logger.Info("host stays awake", "reasons", reasonTypes(now), "message", now.Message())
	}
}

func reasonTypes(r report) string {
	types := make([]string, 0, len(r.Reasons))
	for _, reason := range r.Reasons {
		types = append(types, string(reason.Type))
	}
	return strings.Join(types, ",")
}
