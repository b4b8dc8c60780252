// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	// shutdownTimeout is how long a Host may take to shut down. Afterwards it counts as awake.
	shutdownTimeout = 15 * time.Minute
	// wakeInterval is how often a Host that is not up yet is woken again: it ignores a packet
	// while it shuts down.
	wakeInterval = 30 * time.Second
	// retryDelay is how long a Host is left alone after it could not be shut down or woken.
	retryDelay = 30 * time.Minute
)

// load reads the records once. Until then the Controller changes nothing.
func (c *Controller) load(ctx context.Context) error {
	if c.loaded {
		return nil
	}
	records, err := c.deps.Store.Load(ctx)
	if err != nil {
		c.deps.Inventory.SetSleepingFailure(err)
		return err
	}
	c.records, c.loaded = records, true
	c.deps.Inventory.SetSleeping(records)
	return nil
}

// put writes the record about a Host, and then publishes it; nil removes it. A record that could
// not be written is not published.
func (c *Controller) put(ctx context.Context, name observed.HostName, record *declared.Sleep) error {
	if err := c.deps.Store.Put(ctx, name, record); err != nil {
		return err
	}
	c.publish(name, record)
	return nil
}

func (c *Controller) publish(name observed.HostName, record *declared.Sleep) {
	records := maps.Clone(c.records)
	if record == nil {
		delete(records, name)
	} else {
		records[name] = *record
	}
	c.records = records
	c.deps.Inventory.SetSleeping(records)
}

// namesIn returns the Hosts of a region with a record, in order.
func (c *Controller) namesIn(region string) []observed.HostName {
	var names []observed.HostName
	for name := range c.records {
		if name.Region == region {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b observed.HostName) int { return strings.Compare(a.Host, b.Host) })
	return names
}

// observe updates the records of a region by what the Snapshot shows. While the Cluster is
// unavailable nothing is concluded.
func (c *Controller) observe(ctx context.Context, view inventory.View, region string) {
	if view.Unavailable(region) != nil || view.Failures[region] != nil {
		return
	}
	for _, name := range c.namesIn(region) {
		host, known := view.Snapshots[region].Hosts[name.Host]
		state, _ := view.Host(region, name.Host)
		if err := c.observeHost(ctx, name, host, known, state.Power.WakeTimeout); err != nil {
			log.FromContext(ctx).Error(err, "recording the power state of a host failed, retrying", "region", region, "host", name.Host)
		}
	}
}

func (c *Controller) observeHost(ctx context.Context, name observed.HostName, host observed.Host, known bool, wakeTimeout time.Duration) error {
	record, now := c.records[name], c.deps.Clock.Now()
	logger := log.FromContext(ctx).WithValues("region", name.Region, "host", name.Host)
	shuttingDown := isShuttingDown(record, host, now)
	switch {
	case !known:
		logger.Info("host that was shut down to save energy was removed from the Proxmox cluster")
		return c.put(ctx, name, nil)
	case shuttingDown && !host.Online:
		logger.Info("host is asleep", "took", now.Sub(record.Since).Round(time.Second).String())
		record.State = declared.Asleep
	case shuttingDown && now.Sub(record.Since) > shutdownTimeout:
		c.failed.Add(name, "", retryDelay)
		c.fail(ctx, name, actionShutdown, v1alpha1.EventHostShutdownFailed, fmt.Sprintf("Host %s is still online %s after its shutdown was requested", name, shutdownTimeout))
		return c.put(ctx, name, nil)
	case shuttingDown:
		return nil
	case host.IsUp():
		logger.Info("host is awake", "sleptSince", record.Since)
		if !record.WakeSince.IsZero() {
			c.actions.WithLabelValues(name.Region, name.Host, actionWake, resultSuccess).Inc()
		}
		return c.put(ctx, name, nil)
	case record.State == declared.Waking && now.Sub(record.WakeSince) > wakeTimeout:
		record.State, record.FailedAt = declared.WakeFailed, now
		c.fail(ctx, name, actionWake, v1alpha1.EventHostWakeFailed, fmt.Sprintf(
			"Host %s did not come online within %s after it was woken (%s); it gets no VMs for %s, or until it is online: check its Wake-on-LAN settings", name, wakeTimeout, record.WakeReason, retryDelay))
	case record.State == declared.WakeFailed && now.Sub(record.FailedAt) > retryDelay:
		record.State, record.WakeSince, record.WakeSent = declared.Asleep, time.Time{}, time.Time{}
	default:
		return nil
	}
	return c.put(ctx, name, &record)
}

// isShuttingDown reports whether a Host shuts down. While its Cluster had no quorum, it may have
// been off and woken.
func isShuttingDown(record declared.Sleep, host observed.Host, now time.Time) bool {
	uptime := time.Duration(host.UptimeSeconds) * time.Second
	return record.State == declared.ShuttingDown && (!host.IsUp() || uptime == 0 || uptime >= now.Sub(record.Since))
}

// fail logs, counts and emits a failed action.
func (c *Controller) fail(ctx context.Context, name observed.HostName, action, reason, message string) {
	log.FromContext(ctx).Error(errors.New(message), "power management of a host failed", "region", name.Region, "host", name.Host)
	c.actions.WithLabelValues(name.Region, name.Host, action, resultFailure).Inc()
	c.event(ctx, name, corev1.EventTypeWarning, reason, message)
}

// event emits an event of the ConfigMap.
func (c *Controller) event(ctx context.Context, name observed.HostName, kind, reason, message string) {
	object, err := c.deps.Store.read(ctx)
	if err != nil {
		object = c.deps.Store.configMap() // without its UID
	}
	c.deps.Recorder.Publish(events.Event{
		InvolvedObject: object, Type: kind, Reason: reason, Message: message, DedupeValues: []string{name.String(), reason, message},
	})
}

// act carries out the decisions about Hosts of a region whose mode is Enabled: it wakes all that
// are needed, and shuts one down at a time.
func (c *Controller) act(ctx context.Context, view inventory.View, region string, decisions []power.Decision) {
	switch failure := view.Failures[region]; {
	case !c.loaded:
		return
	case errors.Is(failure, proxmox.ErrNoQuorum):
		c.wakeWithoutQuorum(ctx, region)
		return
	case view.Unavailable(region) != nil || failure != nil:
		return
	}
	for _, decision := range decisions {
		name := observed.HostName{Region: region, Host: decision.Host}
		if decision.Action == power.Wake {
			logError(ctx, name, "waking a host failed, retrying", c.wake(ctx, name, decision.Message()))
		}
	}
	shuttingDown := false
	for _, name := range c.namesIn(region) {
		switch c.records[name].State {
		case declared.ShuttingDown:
			shuttingDown = true
		case declared.Waking:
			c.wakeAgain(ctx, name)
		}
	}
	if shuttingDown {
		return
	}
	for _, decision := range decisions {
		name := observed.HostName{Region: region, Host: decision.Host}
		host, _ := view.Host(region, decision.Host)
		if _, _, failed := c.failed.Get(name); failed || decision.Action != power.Sleep || host.Power.Mode != declared.PowerEnabled {
			continue
		}
		logError(ctx, name, "shutting a host down failed", c.shutDown(ctx, view, name))
		return
	}
}

// wakeAgain repeats the packet for a Host that is not up yet.
func (c *Controller) wakeAgain(ctx context.Context, name observed.HostName) {
	if record := c.records[name]; c.deps.Clock.Since(record.WakeSent) >= wakeInterval {
		logError(ctx, name, "waking a host failed, retrying", c.wake(ctx, name, record.WakeReason))
	}
}

// wakeWithoutQuorum wakes all Hosts of a region that were shut down. The Cluster accepts no
// changes until enough of them vote again; which ones are on is not known.
func (c *Controller) wakeWithoutQuorum(ctx context.Context, region string) {
	for _, name := range c.namesIn(region) {
		switch c.records[name].State {
		case declared.Waking, declared.ShuttingDown: // which ignores the packet until it is off
			c.wakeAgain(ctx, name)
		default:
			logError(ctx, name, "waking a host failed, retrying", c.wake(ctx, name, "the Proxmox cluster has no quorum"))
		}
	}
}

func logError(ctx context.Context, name observed.HostName, message string, err error) {
	if err != nil {
		log.FromContext(ctx).Error(err, message, "region", name.Region, "host", name.Host)
	}
}

// wake records that a Host is woken, and wakes it. If that fails, the time continues: after the
// wake timeout other Hosts are used. The state of a Host that shuts down is kept: otherwise the
// record would be deleted while it is still on.
func (c *Controller) wake(ctx context.Context, name observed.HostName, reason string) error {
	record, now := c.records[name], c.deps.Clock.Now()
	if record.State != declared.Waking && record.State != declared.ShuttingDown {
		record.State, record.WakeSince, record.WakeReason = declared.Waking, now, reason
		log.FromContext(ctx).Info("waking host", "region", name.Region, "host", name.Host, "reason", reason)
		c.event(ctx, name, corev1.EventTypeNormal, v1alpha1.EventHostWoken, fmt.Sprintf("Waking host %s: %s", name, reason))
	}
	record.WakeSent = now
	if err := c.put(ctx, name, &record); err != nil {
		return err
	}
	_, err := c.deps.Clients[name.Region].Wake(ctx, name.Host)
	return err
}

// shutDown shuts a Host down. The record comes first: from then on no VM is launched on the Host.
// Then everything is read again, so nothing that began before the record is missed.
func (c *Controller) shutDown(ctx context.Context, view inventory.View, name observed.HostName) error {
	facts, _, _ := c.facts.Peek(name.Region)
	record := declared.Sleep{
		State: declared.ShuttingDown, KubeCluster: c.deps.KubeCluster, Since: c.deps.Clock.Now(), Known: view.Snapshots[name.Region].KnownHost(name.Host),
		Address: facts.Value.Addresses[name.Host],
	}
	if err := c.put(ctx, name, &record); err != nil {
		return err
	}
	decision, err := c.decideAgain(ctx, name)
	if err == nil && decision.Action == power.Sleep {
		return c.requestShutdown(ctx, name)
	}
	if err == nil {
		log.FromContext(ctx).Info("host stays awake", "region", name.Region, "host", name.Host, "reasons", reasonTypes(decision), "message", decision.Message())
	}
	// The controller may end now. A record of a Host that stays awake would delay launches.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	return errors.Join(err, c.put(ctx, name, nil))
}

// writeTimeout limits a write that must not end with the controller.
const writeTimeout = 10 * time.Second

// decideAgain reads everything again and returns the decision about a Host.
func (c *Controller) decideAgain(ctx context.Context, name observed.HostName) (power.Decision, error) {
	if err := c.deps.Inventory.Refresh(ctx, name.Region); err != nil {
		return power.Decision{}, err
	}
	view := c.deps.Inventory.View()
	c.facts.Invalidate(name.Region)
	for _, decision := range power.Decide(c.newRegion(ctx, view, name.Region, name.Host)) {
		if decision.Host == name.Host {
			return decision, nil
		}
	}
	return power.Decision{}, fmt.Errorf("host %s is not in the Proxmox cluster any more", name)
}

// requestShutdown requests the shutdown. If its outcome is unknown, the record remains: the Host
// goes offline, or counts as awake after a timeout.
func (c *Controller) requestShutdown(ctx context.Context, name observed.HostName) error {
	err := c.deps.Clients[name.Region].Shutdown(ctx, name.Host)
	if err != nil && (errors.Is(err, proxmox.ErrUnknownOutcome) || ctx.Err() != nil) {
		return err
	}
	if proxmox.IsTransient(err) {
		return errors.Join(err, c.put(ctx, name, nil)) // the request had no effect
	}
	if err != nil {
		c.failed.Add(name, "", retryDelay)
		c.fail(ctx, name, actionShutdown, v1alpha1.EventHostShutdownFailed, fmt.Sprintf("Host %s cannot be shut down: %v", name, err))
		return c.put(ctx, name, nil)
	}
	log.FromContext(ctx).Info("shutting host down to save energy", "region", name.Region, "host", name.Host)
	c.actions.WithLabelValues(name.Region, name.Host, actionShutdown, resultSuccess).Inc()
	c.event(ctx, name, corev1.EventTypeNormal, v1alpha1.EventHostShutDown, fmt.Sprintf("Host %s is shut down to save energy", name))
	return nil
}
