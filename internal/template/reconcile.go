// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Around is what the work on one Host must know of the rest.
type Usage struct {
	// Wishes of all ProxmoxTemplates: images are shared between them.
	Desired []Desired
	// Needed says who needs a Template; empty when nobody does.
	InUse func(region string, vmid int) string
}

// recheck is how soon a Host is looked at again where something is on its way.
const recheck = 2 * time.Second

// Tend makes what is missing of a ProxmoxTemplate on one Host and removes what nobody
// needs there. It waits for the tasks that it starts. The duration is when to come
// back; zero where nothing is left to do.
func (p *Provider) ReconcileHost(ctx context.Context, w Desired, region, host string, around Usage) (time.Duration, error) {
	client, err := p.client(region)
	if err != nil {
		return 0, err
	}
	view := p.Inventory.View()
	snapshot := view.Snapshots[region]
	if snapshot == nil || view.Failures[region] != nil || !snapshot.Hosts[host].Online {
		return 0, nil // the view's next change brings us back
	}
	t := &tending{Provider: p, wish: w, region: region, host: host, client: client, around: around, spot: HostKey{UID: w.UID, Region: region, Host: host}}
	ctx, done := p.memory.begin(ctx, t.spot, w)
	defer done()
	again, err := t.run(ctx)
	if errors.Is(err, errSuperseded) || errors.Is(context.Cause(ctx), errSuperseded) {
		return time.Millisecond, nil
	}
	return again, err
}

// tending is one run on one Host.
type tending struct {
	*Provider
	wish         Desired
	region, host string
	client       proxmox.Client
	around       Usage
	spot         HostKey
}

func (t *tending) run(ctx context.Context) (time.Duration, error) {
	again, err := t.make(ctx)
	if errors.Is(err, errStillRunning) {
		return recheck, nil
	}
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		again = t.memory.failed(t.spot, t.Clock.Now(), err.Error(), passing(err))
	}
	later, err := t.tidy(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		t.note(err.Error())
		later = maxPassingPause
	}
	return soonest(again, later), nil
}

func (t *tending) make(ctx context.Context) (time.Duration, error) {
	here, err := t.look(ctx, t.memory.first(t.spot))
	if err != nil {
		return 0, err
	}
	return t.ensure(ctx, here)
}

func soonest(a, b time.Duration) time.Duration {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

// here is what there is on the Host, looked at just now.
type here struct {
	view  inventory.View
	place Location
	wants bool
	// ready are the Templates that the view shows, made those of ours that it does
	// not show as Templates yet, or that are none yet.
	ready, made []Existing
	// leftover is a VM that somebody's create left locked.
	leftover int
}

// look finds what there is. The view suffices for Templates; what was just made, or
// left half made, is asked for. A thorough look asks about every VM that it could be:
// for some seconds rows of new VMs have no name, or one from before they had theirs.
func (t *tending) look(ctx context.Context, thorough bool) (here, error) {
	h := here{view: t.Inventory.View()}
	all := ListOwned(h.view, t.KubeCluster, t.wish.UID)
	h.ready = on(all, t.region, t.host)
	for _, place := range Locations(h.view, t.wish, all) {
		if place.Region == t.region && place.Host == t.host {
			h.place, h.wants = place, true
		}
	}
	for vmid, guest := range h.view.Snapshots[t.region].Guests {
		if guest.Host != t.host || !t.mayBeMade(guest, thorough) {
			continue
		}
		config, err := t.client.VMConfig(ctx, t.host, vmid)
		if errors.Is(err, proxmox.ErrNotFound) {
			continue
		}
		if _, hidden := errors.AsType[*proxmox.ForbiddenError](err); hidden {
			continue // not a member of our pool, so not ours
		}
		if err != nil {
			return h, explain(err, h.place, "looking at the host", "")
		}
		if found, ok := claim(t.KubeCluster, t.wish.UID, guest, t.region, config); ok {
			h.made = append(h.made, found)
		} else if config.Lock() == lockCreate {
			h.leftover = vmid
		}
	}
	slices.SortFunc(h.made, func(a, b Existing) int { return a.VMID - b.VMID })
	return h, nil
}

// lockCreate marks a configuration that a create is still writing.
const lockCreate = "create"

// mayBeMade tells whether a guest may be a Template of ours in the making.
func (t *tending) mayBeMade(guest inventory.Guest, thorough bool) bool {
	within := t.Settings.VMIDs
	if guest.Kind != proxmox.KindQEMU || guest.Template || guest.VMID < within.From || guest.VMID > within.To {
		return false
	}
	return thorough || guest.Name == t.wish.Name || !guest.HasResources() || guest.Lock == lockCreate
}

// ensure brings the Host's Template about.
func (t *tending) ensure(ctx context.Context, h here) (time.Duration, error) {
	if !h.wants || h.place.Problem != "" {
		return 0, nil
	}
	for _, found := range h.ready {
		if h.place.has(t.wish, found) {
			if err := t.settle(ctx, h.place, found); err != nil {
				return 0, err
			}
			t.memory.succeeded(t.spot)
			return 0, nil
		}
	}
	if known := t.memory.read(t.spot); known.failures > 0 && t.Clock.Now().Before(known.retry) {
		return known.retry.Sub(t.Clock.Now()), nil
	}
	// What was made since the view was taken must not be made twice.
	if err := t.Inventory.Refresh(ctx, t.region); err != nil {
		return 0, explain(err, h.place, "looking at the cluster", "")
	}
	h, err := t.look(ctx, true)
	if err != nil {
		return 0, err
	}
	if !h.wants || slices.ContainsFunc(h.ready, func(f Existing) bool { return h.place.has(t.wish, f) }) {
		return time.Millisecond, nil
	}
	return t.build(ctx, h)
}

// Due lists the Hosts where something is to be done for a wish, as far as the view
// shows.
func (p *Provider) PendingHosts(w Desired) []HostKey {
	view := p.Inventory.View()
	found := ListOwned(view, p.KubeCluster, w.UID)
	due := map[HostKey]bool{}
	for _, place := range Locations(view, w, found) {
		missing := !slices.ContainsFunc(found, func(f Existing) bool { return place.has(w, f) && p.written(w, f) })
		sweep := p.memory.sweepDue(place.Region, place.Host, p.Clock.Now(), func() bool {
			return p.Inventory.TryAcquire(place.Region, inventory.ReadImages)
		})
		due[HostKey{UID: w.UID, Region: place.Region, Host: place.Host}] = (missing || sweep) && place.Problem == ""
	}
	for _, f := range found {
		if w.Deleted || !w.made(f.Mark) || len(on(found, f.Region, f.Host)) > 1 || !w.wants(f.Region) {
			due[HostKey{UID: w.UID, Region: f.Region, Host: f.Host}] = true
		}
	}
	for _, spot := range p.unfinished(view, w) {
		due[spot] = true
	}
	var out []HostKey
	for spot, is := range due {
		if is {
			out = append(out, spot)
		}
	}
	return out
}

// unfinished are the Hosts with a VM that may be a Template in the making.
func (p *Provider) unfinished(view inventory.View, w Desired) []HostKey {
	t := tending{Provider: p, wish: w}
	var out []HostKey
	for region, snapshot := range view.Snapshots {
		for _, guest := range snapshot.Guests {
			if guest.Name == w.Name && t.mayBeMade(guest, false) {
				out = append(out, HostKey{UID: w.UID, Region: region, Host: guest.Host})
			}
		}
	}
	return out
}

// written tells whether a Template has the settings of the wish.
func (p *Provider) written(w Desired, f Existing) bool {
	return f.Mark.Settings == w.Settings && f.Mark.Hash == w.Hash || p.memory.hasWritten(f.Zone(), w.Settings+"/"+w.Hash)
}

func (t *tending) key(storage string) string {
	return fmt.Sprintf("%s/%s/%s", t.region, t.host, storage)
}
