// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// job is one controller's work on one NodeClaim or ProxmoxTemplate. Controllers work on an
// object concurrently, as in the manager.
type job struct {
	controller string
	object     types.UID
}

const (
	// scanInterval is how often a Process checks for work, in real time.
	scanInterval = 20 * time.Millisecond
	// minBackoff and maxBackoff are those of a work queue, in simulated time.
	minBackoff, maxBackoff = 500 * time.Millisecond, 15 * time.Second
)

// Steps of a VM's lifecycle in order.
const (
	// StepPlan is the first part of a launch, which core waits for.
	StepPlan    = "plan"
	StepLaunch  = "launch"
	StepCleanup = "cleanup"
	StepDelete  = "delete"
	// StepPrepare is the preparation of a template. It has no RunStep.
	StepPrepare = "prepare"
)

// RunStep runs one step for a NodeClaim once, as its controllers would.
func (p *Process) RunStep(step, name string) error {
	claim := &karpv1.NodeClaim{}
	read := func() error { return p.kube.Get(p.ctx, types.NamespacedName{Name: name}, claim) }
	if err := read(); err != nil {
		return err
	}
	var err error
	switch step {
	case StepCleanup:
		_, err = p.cleanUp(p.ctx, claim)
		return err
	case StepDelete:
		_, err = p.terminate(p.ctx, claim)
		return err
	}
	if _, err = p.create(p.ctx, claim); err != nil {
		return err
	}
	if err = read(); err != nil || step == StepPlan {
		return err
	}
	_, err = p.launch.Reconcile(p.ctx, claim)
	return err
}

// Run starts everything that the controller does. It continues until the Process is killed.
func (p *Process) Run() {
	if p.quiet {
		p.work.Go(func() { _ = p.Inventory.Start(p.ctx) })
	}
	p.work.Go(func() {
		for p.ctx.Err() == nil {
			for _, claim := range p.env.Claims() {
				p.startDue(&claim)
			}
			for _, t := range p.env.templates() {
				p.startDueTemplate(&t)
			}
			select {
			case <-time.After(scanInterval):
			case <-p.ctx.Done():
			}
		}
	})
	p.runPeriodically()
}

// runPeriodically starts the work that does not depend on events of one NodeClaim.
func (p *Process) runPeriodically() {
	p.work.Go(func() { p.every(pollInterval, func() { _, _ = p.health.Reconcile(p.ctx); p.healthRounds.Add(1) }) })
	p.work.Go(func() {
		p.every(pollInterval, func() { _, _ = p.collector.Reconcile(p.ctx); p.collectorRounds.Add(1) })
	})
}

func (p *Process) every(interval time.Duration, do func()) {
	for p.ctx.Err() == nil {
		do()
		select {
		case <-p.env.Clock.After(interval):
		case <-p.ctx.Done():
		}
	}
}

// startDue starts the jobs that a NodeClaim needs.
func (p *Process) startDue(claim *karpv1.NodeClaim) {
	start := func(controller string, do func(context.Context, *karpv1.NodeClaim) (reconcile.Result, error)) {
		p.startJob(controller, claim.UID, func(ctx context.Context) (reconcile.Result, error) { return do(ctx, claim.DeepCopy()) })
	}
	launched := p.Instances.VMs.IsLaunched(claim)
	switch {
	case !claim.DeletionTimestamp.IsZero():
		start("terminate", p.terminate)
	case claim.Status.ProviderID == "":
		start("create", p.create)
	case launched:
		start("vmupdate", p.cleanUp)
	}
	if claim.Status.ProviderID != "" && !launched {
		start("launch", p.launch.Reconcile)
	}
}

// startJob starts a job unless it is running or in backoff.
func (p *Process) startJob(controller string, object types.UID, do func(context.Context) (reconcile.Result, error)) {
	j := job{controller, object}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[j] || p.env.Clock.Now().Before(p.notBefore[j]) {
		return
	}
	p.busy[j] = true
	p.work.Go(func() {
		result, err := do(p.ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.busy, j)
		p.last[j] = err
		delay := result.RequeueAfter
		if err != nil {
			delay = min(minBackoff<<min(p.failures[j], 10), maxBackoff)
			p.failures[j]++
		} else {
			delete(p.failures, j)
		}
		p.notBefore[j] = p.env.Clock.Now().Add(delay)
	})
}

// create does what core does with the result of Create.
func (p *Process) create(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if stored, err := p.Instances.Planner.Stored(ctx, claim.UID); err != nil || stored != nil {
		return reconcile.Result{}, err
	}
	in, err := p.Instances.Planner.Plan(ctx, claim, p.classOf(ctx, claim), false)
	if _, insufficient := errors.AsType[*instance.InsufficientCapacityError](err); insufficient {
		return reconcile.Result{}, client.IgnoreNotFound(p.kube.Delete(ctx, claim))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{}, client.IgnoreNotFound(testenv.StorePlan(ctx, p.kube, claim, p.classOf(ctx, claim), in))
}

func (p *Process) classOf(ctx context.Context, claim *karpv1.NodeClaim) *v1alpha1.ProxmoxNodeClass {
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := p.kube.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		p.env.t.Errorf("reading class of claim %s: %v", claim.Name, err)
	}
	return class
}

// cleanUp is what core does when the guest joins, and then the bootstrap cleanup.
func (p *Process) cleanUp(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if !claim.StatusConditions().Get(karpv1.ConditionTypeInitialized).IsTrue() {
		before := claim.DeepCopy()
		for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
			claim.StatusConditions().SetTrue(condition)
		}
		if err := p.kube.Status().Patch(ctx, claim, client.MergeFrom(before)); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
	}
	return p.cleanup.Reconcile(ctx, claim)
}

// terminate is core's finalizer: core assumes that a NodeClaim without a providerID never had
// a VM.
func (p *Process) terminate(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if claim.Status.ProviderID != "" {
		gone, err := p.Instances.Deleter.Delete(ctx, claim)
		if _, abandoned := errors.AsType[*instance.AbandonedError](err); err != nil && !abandoned {
			return reconcile.Result{}, err
		}
		if !gone {
			return reconcile.Result{RequeueAfter: 5 * time.Second}, nil
		}
	}
	current := &karpv1.NodeClaim{}
	if err := p.kube.Get(ctx, client.ObjectKeyFromObject(claim), current); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if current.Status.ProviderID != claim.Status.ProviderID {
		return reconcile.Result{RequeueAfter: time.Second}, nil // core's optimistic lock
	}
	controllerutil.RemoveFinalizer(current, karpv1.TerminationFinalizer)
	return reconcile.Result{}, client.IgnoreNotFound(p.kube.Update(ctx, current))
}
