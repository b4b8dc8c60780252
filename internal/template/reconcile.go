// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Usage is what deleting from one Host needs to know about other objects.
type Usage struct {
	// Desired lists all ProxmoxTemplates: they share images.
	Desired []Desired
	// InUse returns why a Template is still needed, and "" if it is not.
	InUse func(region string, vmid int) string
}

// ListUsage returns the current Usage. It is called right before each deletion: a build
// takes minutes, in which other ProxmoxTemplates and Claims are created.
type ListUsage func(ctx context.Context) (Usage, error)

// deletionRetry is how soon a deletion that failed is tried again.
const deletionRetry = 30 * time.Second

// recheckInterval is how soon a Host with an operation in progress is reconciled again.
const recheckInterval = 2 * time.Second

// ReconcileHost builds the Template that a ProxmoxTemplate requires on one Host and
// deletes the Templates and images that are no longer needed there. It waits for the
// tasks that it starts. It returns after which time to reconcile again, zero if the
// Host is up to date.
func (p *Provider) ReconcileHost(ctx context.Context, desired Desired, region, host string, usage ListUsage) (time.Duration, error) {
	client, err := p.client(region)
	if err != nil {
		return 0, err
	}
	view := p.inventory.View()
	state, _ := view.Host(region, host)
	switch state.Obstacle(inventory.Build).Reason {
	case "":
	case inventory.PowerUnknown:
		return recheckInterval, nil
	default:
		return 0, nil // reconciled when the view changes
	}
	r := &hostReconciler{Provider: p, HostKey: HostKey{UID: desired.UID, Region: region, Host: host}, desired: desired, client: client, usage: usage}
	ctx, done := p.tracker.begin(ctx, r.HostKey, desired)
	defer done()
	defer p.inventory.Ledger().Release(r.reservation()) // the VM is listed, or another run finds it
	after, err := r.reconcile(ctx)
	if errors.Is(err, errSuperseded) || errors.Is(context.Cause(ctx), errSuperseded) {
		return time.Millisecond, nil
	}
	return after, err
}

// hostReconciler is one run for one ProxmoxTemplate on one Host.
type hostReconciler struct {
	*Provider
	HostKey
	desired Desired
	client  proxmox.Client
	usage   ListUsage
}

func (r *hostReconciler) reconcile(ctx context.Context) (time.Duration, error) {
	after, err := r.ensureTemplate(ctx)
	switch {
	case errors.Is(err, errImageBusy):
		return progressInterval, nil // a download may take an hour
	case errors.Is(err, errStillRunning):
		return recheckInterval, nil
	}
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		after = r.tracker.recordFailure(r.HostKey, r.clock.Now(), err.Error())
	}
	deleteAfter, err := r.deleteUnneeded(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		r.setWarning(err.Error())
		deleteAfter = deletionRetry
	}
	return soonest(after, deleteAfter), nil
}

// soonest returns the shorter duration that is not zero.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

// observation is the current state of one Host.
type observation struct {
	view inventory.View
	// location is where the Template is required; required is false if there is none, and
	// location then contains only the Host and whether it is excluded.
	location Location
	required bool
	// ready are the Templates that the view shows. unfinished are owned VMs that are not
	// Templates yet, or not in the view.
	ready, unfinished []Existing
	// staleLock is the VMID of a VM that an interrupted create left locked.
	staleLock int
}

// observe reads the current state of the Host. The view lists the Templates; the
// configuration of every other VM in the VMID range is read from Proxmox, because /cluster/resources
// shows the names and locks of VMs late.
func (r *hostReconciler) observe(ctx context.Context) (observation, error) {
	obs := observation{view: r.inventory.View(), location: Location{Region: r.Region, Host: r.Host}}
	state, _ := obs.view.Host(r.Region, r.Host)
	obs.location.Excluded = state.Has(inventory.Excluded) && r.desired.appliesTo(r.Region)
	rollout := NewRollout(obs.view, r.kubeCluster, r.desired)
	obs.ready = onHost(rollout.Existing, r.Region, r.Host)
	for _, location := range rollout.Locations {
		if location.Region == r.Region && location.Host == r.Host {
			obs.location, obs.required = location, true
		}
	}
	for vmid, guest := range obs.view.Snapshots[r.Region].Guests {
		if guest.Host != r.Host || !r.mayBeTemplate(guest) {
			continue
		}
		config, err := r.client.VMConfig(ctx, r.Host, vmid)
		if errors.Is(err, proxmox.ErrNotFound) {
			continue
		}
		if _, hidden := errors.AsType[*proxmox.ForbiddenError](err); hidden {
			continue // not in our resource pool, so not ours
		}
		if err != nil {
			return obs, explain(err, obs.location, "inspecting the host", "")
		}
		if owned, ok := parseOwned(r.kubeCluster, r.desired.UID, guest, r.Region, config); ok {
			obs.unfinished = append(obs.unfinished, owned)
		} else if config.Lock() == lockCreate {
			obs.staleLock = vmid
		}
	}
	slices.SortFunc(obs.unfinished, func(a, b Existing) int { return a.VMID - b.VMID })
	return obs, nil
}

// lockCreate is the lock that Proxmox sets on a VM while it is created.
const lockCreate = "create"

// mayBeTemplate reports whether a guest may be a VM that becomes a Template, but is none yet in the view.
func (p *Provider) mayBeTemplate(guest observed.Guest) bool {
	vmids := p.settings.VMIDs
	isListed := guest.Template && guest.Config != nil && guest.Config.IsTemplate()
	return guest.Kind == proxmox.KindQEMU && vmids.From <= guest.VMID && guest.VMID <= vmids.To && !isListed
}

// mayBeUnfinished reports whether a guest may be a VM that becomes a Template with the given name, according
// to the view.
func (p *Provider) mayBeUnfinished(guest observed.Guest, name string) bool {
	return p.mayBeTemplate(guest) && (guest.Name == name || !guest.HasResources() || guest.Lock == lockCreate)
}

// ensureTemplate builds the Template of the Host if it is missing, and updates its
// settings otherwise.
func (r *hostReconciler) ensureTemplate(ctx context.Context) (time.Duration, error) {
	obs, err := r.observe(ctx)
	if err != nil {
		return 0, err
	}
	if builder, ok := obs.findBuilder(r.desired); ok && !obs.required && obs.location.Excluded && !builder.Mark.Builder.Failed.IsZero() {
		return r.prepare(ctx, obs.location, builder) // stopped and deleted as on other Hosts, but not recreated
	}
	if !obs.required || obs.location.Problem != "" || obs.location.NetworkProblem != "" {
		return 0, nil
	}
	if i := slices.IndexFunc(obs.ready, func(e Existing) bool { return obs.location.matches(r.desired, e) }); i >= 0 {
		if r.desired.isUnread() {
			return 0, nil // its hash is not known, so it must not be written
		}
		return 0, r.updateExisting(ctx, obs.location, obs.ready[i])
	}
	if obs.location.Blocker() != "" {
		return 0, nil
	}
	return r.buildMissing(ctx, obs)
}

// buildMissing builds the Template of the Host, unless it must wait.
func (r *hostReconciler) buildMissing(ctx context.Context, obs observation) (time.Duration, error) {
	if r.desired.isUnread() {
		r.tracker.setStep(r.HostKey, "waiting until the Secrets of spec.prepare are read")
		return recheckInterval, nil
	}
	if builder, ok := obs.findBuilder(r.desired); ok && !builder.Mark.Builder.Failed.IsZero() {
		return r.prepare(ctx, obs.location, builder) // it has its own backoff
	}
	if state := r.tracker.get(r.HostKey); state.failures > 0 && state.builder != 0 {
		// Another user deleted the failed builder VM to retry earlier.
		r.tracker.update(r.HostKey, func(s *hostState) { s.builder, s.retryAt = 0, time.Time{} })
	} else if state.failures > 0 && r.clock.Now().Before(state.retryAt) {
		return state.retryAt.Sub(r.clock.Now()), nil
	}
	// A VM created since the last poll must not be created twice. Creations are listed
	// before the poll: a VM whose creation ends in between is in the new view.
	creating, err := r.isCreating(ctx)
	if err != nil {
		return 0, explain(err, obs.location, "listing tasks", "")
	}
	if err := r.inventory.Refresh(ctx, r.Region); err != nil {
		return 0, explain(err, obs.location, "polling the cluster", "")
	}
	obs, err = r.observe(ctx)
	if err != nil {
		return 0, err
	}
	if !obs.required || obs.location.Blocker() != "" || obs.location.hasTemplate(r.desired, obs.ready) {
		return time.Millisecond, nil
	}
	return r.build(ctx, obs, creating)
}

// updateExisting writes the settings of the Template that the Host has.
func (r *hostReconciler) updateExisting(ctx context.Context, location Location, existing Existing) error {
	if _, err := r.updateInPlace(ctx, location, existing); err != nil {
		return err
	}
	r.tracker.recordSuccess(r.HostKey)
	return nil
}

// PendingHosts returns the Hosts that need reconciling for a ProxmoxTemplate according
// to the current view.
func (p *Provider) PendingHosts(desired Desired) []HostKey {
	r := p.rollout(desired)
	pending := map[HostKey]bool{}
	for _, location := range r.Locations {
		missing := !slices.ContainsFunc(r.Existing, func(e Existing) bool { return location.matches(desired, e) && p.isUpToDate(desired, e) })
		sweep := p.isSweepDue(observed.HostName{Region: location.Region, Host: location.Host})
		pending[HostKey{UID: desired.UID, Region: location.Region, Host: location.Host}] = (missing || sweep) && r.isReconcilable(location)
	}
	for _, e := range r.Existing {
		key := HostKey{UID: desired.UID, Region: e.Region, Host: e.Host}
		// On shared storage, a Host that is back may have a surplus Template.
		_, required := pending[key]
		if desired.Deleted || !required || !desired.matches(e.Mark) || len(onHost(r.Existing, e.Region, e.Host)) > 1 || !desired.appliesTo(e.Region) {
			pending[key] = true
		}
	}
	for _, key := range p.unfinishedHosts(r.View, desired) {
		pending[key] = true
	}
	var out []HostKey
	for key, isPending := range pending {
		if isPending {
			out = append(out, key)
		}
	}
	return out
}

// isUpToDate reports whether a Template has the desired settings, unless they were written since the
// inventory has read its configuration.
func (p *Provider) isUpToDate(desired Desired, e Existing) bool {
	return desired.isWritten(e.Mark) || !p.inventory.HasCurrentConfig(e.Region, e.VMID)
}

// isReconcilable reports whether something can be done at a Location: building the Template,
// or if it exists, updating it.
func (r Rollout) isReconcilable(location Location) bool {
	return location.Blocker() == "" || (r.isReady(location) && location.Problem == "" && location.NetworkProblem == "")
}

// unfinishedHosts returns the Hosts with a VM that may become a Template.
func (p *Provider) unfinishedHosts(view inventory.View, desired Desired) []HostKey {
	var out []HostKey
	for region, snapshot := range view.Snapshots {
		for _, guest := range snapshot.Guests {
			if guest.Name == desired.Name && p.mayBeUnfinished(guest, desired.Name) {
				out = append(out, HostKey{UID: desired.UID, Region: region, Host: guest.Host})
			}
		}
	}
	return out
}

// isWritten reports whether a Template has the desired settings.
func (d Desired) isWritten(mark ownership.Mark) bool {
	return mark.Settings == d.Settings && mark.Hash == d.Hash
}
