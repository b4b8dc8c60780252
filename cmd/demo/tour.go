// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/fleet/terminal"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// Tour runs the steps of the demo and measures them.
type Tour struct {
	stage   *Stage
	report  *Reporter
	summary *Summary
	watch   *Watch
	parts   []part
}

// part is a step of the tour.
type part struct {
	title   string
	timeout time.Duration
	run     func(*Tour, context.Context) error
}

func parts() []part {
	return []part{
		{"scale up", time.Minute, (*Tour).scaleUp},
		{"spread", time.Minute, (*Tour).spread},
		{"host fails", 2 * time.Minute, (*Tour).hostFails},
		{"scale down", 3 * time.Minute, (*Tour).scaleDown},
	}
}

// NewTour returns a tour.
func NewTour(stage *Stage, report *Reporter, summary *Summary) *Tour {
	t := &Tour{stage: stage, report: report, summary: summary, watch: NewWatch(stage, report), parts: parts()}
	if guests := stage.Guests; guests != nil {
		t.parts, t.watch.detail = realParts(), guests.lastOutput
	}
	return t
}

// Run runs all parts in order and stops at the first that fails.
func (t *Tour) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { t.watch.run(ctx) })
	wg.Go(func() {
		if err := t.stage.waitForExit(ctx); err != nil {
			cancel(err)
		}
	})
	if guests := t.stage.Guests; guests != nil {
		wg.Go(func() { guests.watch(ctx, t.stage.Plane.Client, func(string, string) {}) })
	}
	for i, p := range t.parts {
		t.report.Step(i+1, len(t.parts), p.title)
		if err := t.attempt(ctx, p); err != nil {
			if guests := t.stage.Guests; guests != nil && ctx.Err() == nil {
				guests.saveJournals(ctx, t.stage.Dir, t.watch.now())
			}
			return fmt.Errorf("%s: %w", p.title, err)
		}
		t.report.Map(t.watch.now().Map)
	}
	return nil
}

func (t *Tour) attempt(ctx context.Context, p part) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.timeout, fmt.Errorf("timeout after %s", p.timeout))
	defer cancel()
	return p.run(t, ctx)
}

const (
	web     = "web"
	webPods = 6
	db      = "db"
	dbPods  = 6
)

// scaleUp creates pods that need new nodes.
func (t *Tour) scaleUp(ctx context.Context) error {
	t.report.Headline("%d pods request 1 CPU each, and there are no nodes", webPods)
	if err := t.stage.Plane.Client.Create(ctx, deployment(web, webPods)); err != nil {
		return fmt.Errorf("creating deployment: %w", err)
	}
	took, err := t.watch.until(ctx, "all pods to run", func(s State) bool { return s.ready(web) == webPods })
	if err != nil {
		return err
	}
	t.summary.Add(fmt.Sprintf("%d pending pods run on %d new VMs", webPods, len(t.watch.now().VMs)), took)
	if _, err := t.watch.until(ctx, "all nodes to be Ready", func(s State) bool { return s.all(fleet.Ready) }); err != nil {
		return err
	}
	t.summary.AddNote("time from Karpenter's decision to a Ready node", spanOf(t.report.ReadyTimes()))
	return nil
}

// spread creates pods that must be spread over hosts.
func (t *Tour) spread(ctx context.Context) error {
	t.report.Headline("%d pods must spread evenly over the zones; a zone is a Proxmox host", dbPods)
	if err := t.stage.Plane.Client.Create(ctx, spreadOverHosts(deployment(db, dbPods))); err != nil {
		return fmt.Errorf("creating deployment: %w", err)
	}
	took, err := t.watch.until(ctx, "all pods to run", func(s State) bool { return s.ready(db) == dbPods && s.all(fleet.Ready) })
	if err != nil {
		return err
	}
	perHost := map[string]int{}
	for _, pod := range t.watch.now().of(db) {
		perHost[pod.Host]++
	}
	for _, host := range t.watch.now().Hosts {
		if perHost[host.Name] != dbPods/hosts {
			return fmt.Errorf("host %s has %d of the %d pods, want %d", host.Name, perHost[host.Name], dbPods, dbPods/hosts)
		}
	}
	t.report.Event(terminal.Green, "pods of %s are spread: %d on each of %d hosts", db, dbPods/hosts, hosts)
	t.summary.Add(fmt.Sprintf("%d pods spread over %d hosts, %d on each", dbPods, hosts, dbPods/hosts), took)
	return nil
}

// hostFails powers a host off and on again. Its pods run elsewhere in between, and its VMs are
// restarted.
func (t *Tour) hostFails(ctx context.Context) error {
	failedHost := t.busiest(web)
	on := func(s State) []fleet.VM {
		return slices.DeleteFunc(slices.Clone(s.VMs), func(vm fleet.VM) bool { return vm.Host != failedHost })
	}
	lost := len(on(t.watch.now()))
	t.report.Headline("host %s with %d VMs loses power", failedHost, lost)
	t.report.Event(terminal.Red, "host %s is down", failedHost)
	if err := t.stage.Proxmox.HostDown(failedHost, "noroute"); err != nil {
		return err
	}
	moved, err := t.watch.until(ctx, "the pods to run on other hosts", func(s State) bool {
		away := slices.DeleteFunc(s.of(web), func(p Pod) bool { return p.Host == failedHost })
		return s.ready(web) == webPods && len(away) == webPods
	})
	if err != nil {
		return err
	}
	t.report.Event(terminal.Green, "all pods of %s run on other hosts", web)
	t.summary.Add(fmt.Sprintf("host %s failed: the pods of %s run on other hosts", failedHost, web), moved)

	t.report.Headline("host %s is back; the pods of %s waited for it because they must be spread", failedHost, db)
	t.report.Event(terminal.Green, "host %s is up, its VMs are stopped", failedHost)
	if err := t.stage.Proxmox.HostUp(failedHost); err != nil {
		return err
	}
	back, err := t.watch.until(ctx, "the host's nodes to be Ready again", func(s State) bool {
		return len(on(s)) >= lost && s.all(fleet.Ready) && s.ready(db) == dbPods
	})
	if err != nil {
		return err
	}
	t.summary.Add(fmt.Sprintf("host %s is back: its %d VMs were restarted, nodes Ready", failedHost, lost), back)
	return nil
}

// busiest returns the host with the most pods of an app.
func (t *Tour) busiest(app string) string {
	count := map[string]int{}
	most := ""
	for _, pod := range t.watch.now().of(app) {
		count[pod.Host]++
		if most == "" || count[pod.Host] > count[most] {
			most = pod.Host
		}
	}
	return most
}

// scaleDown removes all pods, so all VMs are deleted.
func (t *Tour) scaleDown(ctx context.Context) error {
	kube := t.stage.Plane.Client
	t.report.Headline("no pods: Karpenter deletes all VMs")
	if err := consolidateAfter(ctx, kube, "0s"); err != nil {
		return err
	}
	for _, app := range []string{web, db} {
		if err := harness.Scale(ctx, kube, app, 0); err != nil {
			return err
		}
	}
	took, err := t.watch.until(ctx, "the last VM to be deleted", func(s State) bool { return len(s.VMs) == 0 && len(s.Pods) == 0 })
	if err != nil {
		return err
	}
	t.summary.Add("scaled to zero: all VMs deleted", took)
	return nil
}
