// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package power reports which Hosts could be shut down to save energy, what keeps the others
// awake, and how much energy that would save. It shuts Hosts down whose setting is Enabled, and
// wakes them when they are needed. A ConfigMap records the Hosts that were shut down, so a
// restarted controller continues, and Hosts that an administrator shut down are never woken.
package power

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/since"
)

const (
	// interval is how often decisions are made without a change of the inventory.
	interval = 15 * time.Second
	// factsInterval is how often the Facts of a region are read.
	factsInterval = 5 * time.Minute
	// tasksInterval is how often they are read while only tasks keep a Host awake.
	tasksInterval = 30 * time.Second
	// factsTimeout limits the time to read them.
	factsTimeout = time.Minute
)

// Deps are the dependencies of the Controller.
type Deps struct {
	Clients   map[string]proxmox.Client // by region
	Inventory *inventory.Inventory
	// KubeCluster is the UID of the Kubernetes cluster, which identifies its VMs.
	KubeCluster string
	Store       Store
	// PendingTemplates returns the ProxmoxTemplates whose Templates are to be built or deleted on
	// Hosts.
	PendingTemplates func(context.Context) (map[observed.HostName][]string, error)
	Recorder         events.Recorder
	Clock            clock.PassiveClock
	Registerer       prometheus.Registerer
}

// Controller reports which Hosts could be shut down, shuts them down, and wakes them.
type Controller struct {
	deps    Deps
	actions *prometheus.CounterVec
	facts   *due.Cache[string, power.Facts] // by region
	// loaded: the records were read.
	loaded bool
	// failed are the Hosts that could not be shut down.
	failed *backoff.Holds[observed.HostName]
	// idleSince is when a Host was first seen idle.
	idleSince since.Times[observed.HostName]

	// reports are the last decisions, which the collector of metrics reads.
	reports atomic.Pointer[map[observed.HostName]report]
	// records are the Hosts that were shut down. The map is replaced, never changed.
	records map[observed.HostName]declared.Sleep
}

// report is the last decision about a Host.
type report struct {
	power.Decision
	watts float64
	// savedWatts is the power that is saved because the Host is off.
	savedWatts float64
}

// NewController returns a Controller. It panics if its metrics are already registered.
func NewController(deps Deps) *Controller {
	c := &Controller{
		deps: deps, actions: newActionMetric(), failed: backoff.NewHolds[observed.HostName](deps.Clock, backoff.Exponential{}),
		idleSince: since.New[observed.HostName](deps.Clock),
	}
	c.reports.Store(&map[observed.HostName]report{})
	c.facts = due.New[string, power.Facts](deps.Clock, func(region string) due.Policy { return due.Policy{Every: c.factsInterval(region)} })
	deps.Registerer.MustRegister(c, c.actions)
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

// Evaluate decides about all enrolled Hosts, reports what changed, and shuts Hosts down or wakes
// them. Regions without enrolled Hosts cost no request.
func (c *Controller) Evaluate(ctx context.Context) {
	if err := c.load(ctx); err != nil {
		log.FromContext(ctx).Error(err, "reading which hosts were shut down failed, no host is shut down or woken, and hosts that may be asleep are not used")
	}
	reports := map[observed.HostName]report{}
	for _, region := range c.deps.Inventory.Regions() {
		view := c.deps.Inventory.View()
		if snapshot := view.Snapshots[region]; snapshot != nil && (isEnrolled(view, region) || len(c.namesIn(region)) > 0) {
			c.observe(ctx, view, region)
			view = c.deps.Inventory.View()
			c.act(ctx, view, region, c.evaluateRegion(ctx, view, region, reports))
		}
	}
	logChanges(ctx, *c.reports.Swap(&reports), reports)
}

// isEnrolled reports whether any Host of a region takes part in power management.
func isEnrolled(view inventory.View, region string) bool {
	return slices.ContainsFunc(view.Hosts(), func(host inventory.HostState) bool {
		return host.Region == region && host.Power.Mode != declared.PowerNone
	})
}

func (c *Controller) evaluateRegion(ctx context.Context, view inventory.View, region string, reports map[observed.HostName]report) []power.Decision {
	found := c.newRegion(ctx, view, region, "")
	hosts := map[string]power.Host{}
	for _, host := range found.Hosts {
		hosts[host.Name] = host
	}
	c.idleSince.End(func(name observed.HostName) bool {
		return name.Region == region && hosts[name.Host].IdleSince.IsZero()
	})
	decisions := power.Decide(found)
	for _, decision := range decisions {
		host := hosts[decision.Host]
		used, saved := host.Energy()
		reports[observed.HostName{Region: region, Host: decision.Host}] = report{decision, used.Watts, saved.Watts}
	}
	return decisions
}

// newRegion returns the state of a region. The Host whose shutdown is being decided counts as
// awake; empty for none.
func (c *Controller) newRegion(ctx context.Context, view inventory.View, region, deciding string) power.Region {
	now, facts := c.deps.Clock.Now(), c.readFacts(ctx, view, region)
	pending, err := c.deps.PendingTemplates(ctx)
	if err != nil {
		facts.Unknown = append(slices.Clone(facts.Unknown), err.Error())
	}
	return power.NewRegion(power.Source{
		View: view, Region: region, Facts: facts, KubeCluster: c.deps.KubeCluster, Now: now, Deciding: deciding, PendingTemplates: pending,
		IdleSince: func(host string) time.Time {
			return c.idleSince.Observe(observed.HostName{Region: region, Host: host})
		},
	})
}

// factsInterval returns how long the Facts of a region are used. Tasks end soon.
func (c *Controller) factsInterval(region string) time.Duration {
	for name, report := range *c.reports.Load() {
		if name.Region == region && reasonTypes(report.Decision) == string(power.TaskRunning) {
			return tasksInterval
		}
	}
	return factsInterval
}

// readFacts returns the Facts of a region. It reads them again when they are too old, and when
// Hosts were enrolled or came online.
func (c *Controller) readFacts(ctx context.Context, view inventory.View, region string) power.Facts {
	hosts := power.EnrolledHosts(view, region)
	facts, _ := c.facts.Get(ctx, region, strings.Join(hosts, ","), func(ctx context.Context) (power.Facts, error) {
		ctx, cancel := context.WithTimeout(ctx, factsTimeout)
		defer cancel()
		return power.ReadFacts(ctx, c.deps.Clients[region], view.Snapshots[region].Version, hosts), nil
	})
	for name, record := range c.records {
		if name.Region == region && facts.Addresses != nil && record.Address != "" {
			facts.Addresses[name.Host] = record.Address
		}
	}
	return facts
}

// logChanges logs the Hosts whose decision has another action, or other types of reasons.
func logChanges(ctx context.Context, before, after map[observed.HostName]report) {
	for name, now := range after {
		was, known := before[name]
		if known && was.Action == now.Action && reasonTypes(was.Decision) == reasonTypes(now.Decision) {
			continue
		}
		logger := log.FromContext(ctx).WithValues("region", name.Region, "host", name.Host)
		switch {
		case now.Action == power.Sleep:
			logger.Info("host could be shut down to save energy", "watts", now.watts)
		case now.Action == power.Keep && len(now.Reasons) > 0:
			logger.Info("host stays awake", "reasons", reasonTypes(now.Decision), "message", now.Message())
		}
	}
}

func reasonTypes(d power.Decision) string {
	types := make([]string, 0, len(d.Reasons))
	for _, reason := range d.Reasons {
		types = append(types, string(reason.Type))
	}
	return strings.Join(types, ",")
}
