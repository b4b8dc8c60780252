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
)

// job is one controller's work on one Claim; controllers work on a Claim at the
// same time, each for itself, as in the real manager.
type job struct {
	controller string
	claim      types.UID
}

const (
	// look is how often a Process looks for work, in real time.
	look = 5 * time.Millisecond
	// The back-off of a work queue, in simulated time.
	firstPause, longestPause = 500 * time.Millisecond, 15 * time.Second
)

// Acts of a VM's life, in their order.
const (
	// ActPlan is the first part of a launch, what core waits for.
	ActPlan     = "plan"
	ActLaunch   = "launch"
	ActHandOver = "hand-over"
	ActDelete   = "delete"
)

// Act does one act for a Claim, once, as its controllers would.
func (p *Process) Act(act, name string) error {
	claim := &karpv1.NodeClaim{}
	read := func() error { return p.kube.Get(p.ctx, types.NamespacedName{Name: name}, claim) }
	if err := read(); err != nil {
		return err
	}
	var err error
	switch act {
	case ActHandOver:
		_, err = p.handOver(p.ctx, claim)
		return err
	case ActDelete:
		_, err = p.terminate(p.ctx, claim)
		return err
	}
	if _, err = p.create(p.ctx, claim); err != nil {
		return err
	}
	if err = read(); err != nil || act == ActPlan {
		return err
	}
	_, err = p.launch.Reconcile(p.ctx, claim)
	return err
}

// Run lets the Process do all that the controller does, until it dies.
func (p *Process) Run() {
	if p.quiet {
		p.work.Go(func() { _ = p.inventory.Start(p.ctx) })
	}
	p.work.Go(func() {
		for p.ctx.Err() == nil {
			for _, claim := range p.world.Claims() {
				p.consider(&claim)
			}
			select {
			case <-time.After(look):
			case <-p.ctx.Done():
			}
		}
	})
	p.work.Go(func() { p.every(pollInterval, func() { _, _ = p.presence.Reconcile(p.ctx); p.presenceRounds.Add(1) }) })
	p.work.Go(func() {
		p.every(pollInterval, func() { _, _ = p.collector.Reconcile(p.ctx); p.collectorRounds.Add(1) })
	})
}

func (p *Process) every(interval time.Duration, do func()) {
	for p.ctx.Err() == nil {
		do()
		select {
		case <-p.world.Clock.After(interval):
		case <-p.ctx.Done():
		}
	}
}

// consider starts what is due for a Claim.
func (p *Process) consider(claim *karpv1.NodeClaim) {
	completed := claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != ""
	switch {
	case !claim.DeletionTimestamp.IsZero():
		p.start("terminate", claim, p.terminate)
	case claim.Status.ProviderID == "":
		p.start("create", claim, p.create)
	case completed && claim.Annotations[v1alpha1.AnnotationBootDataStatus] != v1alpha1.BootDataInitialized:
		p.start("handover", claim, p.handOver)
	}
	if claim.Annotations[v1alpha1.AnnotationLaunchIntent] != "" && !completed {
		p.start("launch", claim, func(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
			return p.launch.Reconcile(ctx, claim)
		})
	}
}

// start works on a Claim, unless that is being done or has to wait.
func (p *Process) start(controller string, claim *karpv1.NodeClaim, do func(context.Context, *karpv1.NodeClaim) (reconcile.Result, error)) {
	j := job{controller, claim.UID}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy[j] || p.world.Clock.Now().Before(p.notBefore[j]) {
		return
	}
	p.busy[j] = true
	claim = claim.DeepCopy()
	p.work.Go(func() {
		result, err := do(p.ctx, claim)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.busy, j)
		p.last[j] = err
		pause := result.RequeueAfter
		if err != nil {
			pause = min(firstPause<<min(p.failures[j], 10), longestPause)
			p.failures[j]++
		} else {
			delete(p.failures, j)
		}
		p.notBefore[j] = p.world.Clock.Now().Add(pause)
	})
}

// create does what core does with the answer of Create.
func (p *Process) create(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	in, err := p.instances.Planner.Plan(ctx, claim, p.classOf(ctx, claim), nil)
	if _, noRoom := errors.AsType[*instance.InsufficientCapacityError](err); noRoom {
		return reconcile.Result{}, client.IgnoreNotFound(p.kube.Delete(ctx, claim))
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	current := &karpv1.NodeClaim{}
	if err := p.kube.Get(ctx, client.ObjectKeyFromObject(claim), current); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	current.Status.ProviderID = in.ProviderID()
	return reconcile.Result{}, p.kube.Status().Update(ctx, current)
}

func (p *Process) classOf(ctx context.Context, claim *karpv1.NodeClaim) *v1alpha1.ProxmoxNodeClass {
	class := &v1alpha1.ProxmoxNodeClass{}
	if err := p.kube.Get(ctx, types.NamespacedName{Name: claim.Spec.NodeClassRef.Name}, class); err != nil {
		p.world.t.Errorf("reading the class of claim %s, %v", claim.Name, err)
	}
	return class
}

// handOver pretends that the guest has joined.
func (p *Process) handOver(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	for _, condition := range []string{karpv1.ConditionTypeLaunched, karpv1.ConditionTypeRegistered, karpv1.ConditionTypeInitialized} {
		claim.StatusConditions().SetTrue(condition)
	}
	return p.handover.Reconcile(ctx, claim)
}

// terminate is core's finalizer: a Claim without a providerID never had a VM, as
// far as core knows.
func (p *Process) terminate(ctx context.Context, claim *karpv1.NodeClaim) (reconcile.Result, error) {
	if claim.Status.ProviderID != "" {
		gone, err := p.instances.Deleter.Delete(ctx, claim)
		if err != nil {
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
