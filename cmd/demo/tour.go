// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// Tour walks through what the product does, and measures it.
type Tour struct {
	stage   *Stage
	report  *Reporter
	summary *Summary
	watch   *Watch
}

// part of the tour.
type part struct {
	title    string
	patience time.Duration
	run      func(*Tour, context.Context) error
}

func parts() []part {
	return []part{
		{"scale up", time.Minute, (*Tour).scaleUp},
		{"spread", time.Minute, (*Tour).spread},
		{"host fails", 2 * time.Minute, (*Tour).hostFails},
		{"scale down", 3 * time.Minute, (*Tour).scaleDown},
	}
}

// NewTour prepares the tour.
func NewTour(stage *Stage, report *Reporter, summary *Summary) *Tour {
	t := &Tour{stage: stage, report: report, summary: summary, watch: NewWatch(stage, report)}
	for _, p := range parts() {
		report.Steps(p.title)
	}
	return t
}

// Run does all parts in order; the first that fails ends the tour.
func (t *Tour) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() { t.watch.run(ctx) })
	wg.Go(func() {
		if err := t.stage.ended(ctx); err != nil {
			cancel(err)
		}
	})
	for i, p := range parts() {
		began := time.Now()
		t.report.Step(i, Running, 0)
		err := t.attempt(ctx, p)
		if err != nil {
			t.report.Step(i, Failed, time.Since(began))
			return fmt.Errorf("%s: %w", p.title, err)
		}
		t.report.Step(i, Done, time.Since(began))
	}
	return nil
}

func (t *Tour) attempt(ctx context.Context, p part) error {
	ctx, cancel := context.WithTimeoutCause(ctx, p.patience, fmt.Errorf("it took longer than %s", p.patience))
	defer cancel()
	return p.run(t, ctx)
}

const (
	web        = "web"
	webPods    = 6
	db         = "db"
	dbPods     = 6
	afterwards = 2
)

// scaleUp: pods that fit nowhere become VMs.
func (t *Tour) scaleUp(ctx context.Context) error {
	t.report.Headline("%d pods ask for 1 CPU each, and there is no node at all", webPods)
	if err := t.stage.Plane.Client.Create(ctx, deployment(web, webPods)); err != nil {
		return fmt.Errorf("creating the deployment: %w", err)
	}
	took, err := t.watch.until(ctx, "all pods to run", func(w World) bool { return w.ready(web) == webPods })
	if err != nil {
		return err
	}
	t.summary.Add(fmt.Sprintf("%d pending pods became %d VMs and run", webPods, len(t.watch.now().VMs)), took)
	if _, err := t.watch.until(ctx, "all nodes to be Ready", func(w World) bool { return w.all(Ready) }); err != nil {
		return err
	}
	t.summary.AddNote("a node was Ready after Karpenter's decision in", spanOf(t.report.ReadyTimes()))
	return nil
}

// spread: zones are hosts.
func (t *Tour) spread(ctx context.Context) error {
	t.report.Headline("%d pods must spread evenly over the zones; a zone is a Proxmox host", dbPods)
	if err := t.stage.Plane.Client.Create(ctx, spreadOverHosts(deployment(db, dbPods))); err != nil {
		return fmt.Errorf("creating the deployment: %w", err)
	}
	took, err := t.watch.until(ctx, "all pods to run", func(w World) bool { return w.ready(db) == dbPods && w.all(Ready) })
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
	t.report.Event(green, "%s has its pods spread: %d on each of %d hosts", db, dbPods/hosts, hosts)
	t.summary.Add(fmt.Sprintf("%d pods spread over %d hosts, %d on each", dbPods, hosts, dbPods/hosts), took)
	return nil
}

// hostFails: pods come back elsewhere, the host comes back with its VMs.
func (t *Tour) hostFails(ctx context.Context) error {
	victim := t.busiest(web)
	on := func(w World) []VM {
		return slices.DeleteFunc(slices.Clone(w.VMs), func(vm VM) bool { return vm.Host != victim })
	}
	lost := len(on(t.watch.now()))
	t.report.Headline("host %s loses power, with %d VMs on it", victim, lost)
	t.report.Event(red, "host %s is dead", victim)
	if err := t.stage.Proxmox.HostDown(victim, "noroute"); err != nil {
		return err
	}
	moved, err := t.watch.until(ctx, "the pods to run on other hosts", func(w World) bool {
		away := slices.DeleteFunc(w.of(web), func(p Pod) bool { return p.Host == victim })
		return w.ready(web) == webPods && len(away) == webPods
	})
	if err != nil {
		return err
	}
	t.report.Event(green, "all pods of %s run on other hosts", web)
	t.summary.Add(fmt.Sprintf("host %s died: the pods of %s run elsewhere", victim, web), moved)

	t.report.Headline("host %s returns; the pods of %s waited for it, since they must be spread", victim, db)
	t.report.Event(green, "host %s is back, its VMs are off", victim)
	if err := t.stage.Proxmox.HostUp(victim); err != nil {
		return err
	}
	back, err := t.watch.until(ctx, "the host's nodes to be Ready again", func(w World) bool {
		return len(on(w)) >= lost && w.all(Ready) && w.ready(db) == dbPods
	})
	if err != nil {
		return err
	}
	t.summary.Add(fmt.Sprintf("host %s returned: its %d VMs started again, nodes Ready", victim, lost), back)
	return nil
}

// busiest is the host with most pods of an app.
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

// scaleDown: first fewer pods than the VMs could hold, then none.
func (t *Tour) scaleDown(ctx context.Context) error {
	kube := t.stage.Plane.Client
	had := len(t.watch.now().VMs)
	t.report.Headline("fewer pods: Karpenter moves them together and gives VMs back")
	if err := consolidateAfter(ctx, kube, "5s"); err != nil {
		return err
	}
	for app, replicas := range map[string]int32{web: afterwards, db: hosts} {
		if err := harness.Scale(ctx, kube, app, replicas); err != nil {
			return err
		}
	}
	took, err := t.watch.until(ctx, "consolidation to fewer VMs", func(w World) bool {
		return len(w.VMs) <= hosts+1 && w.all(Ready) && w.ready(web) == afterwards && w.ready(db) == hosts
	})
	if err != nil {
		return err
	}
	t.summary.Add(fmt.Sprintf("consolidation: %d VMs became %d", had, len(t.watch.now().VMs)), took)

	t.report.Headline("no pods any more: no VM may be left")
	for _, app := range []string{web, db} {
		if err := harness.Scale(ctx, kube, app, 0); err != nil {
			return err
		}
	}
	took, err = t.watch.until(ctx, "the last VM to go", func(w World) bool { return len(w.VMs) == 0 && len(w.Pods) == 0 })
	if err != nil {
		return err
	}
	t.summary.Add("scaled to zero: the last VM is gone", took)
	return nil
}
