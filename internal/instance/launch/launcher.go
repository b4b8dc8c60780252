// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package launch creates the VM of a planned Claim. The Launcher clones the Template and
// uploads the boot drive in parallel, writes the configuration, and starts the VM. A
// launch can be resumed after each step.
package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Launcher launches VMs.
type Launcher struct {
	deps    instance.Deps
	planner Planner
	types   *instancetype.Provider
	boot    boot.Source
	stats   Stats
}

// Planner plans parked Claims once there is capacity, and those that another process planned.
type Planner interface {
	Unpark(context.Context, *karpv1.NodeClaim, *v1alpha1.ProxmoxNodeClass, instance.Intent) (instance.Intent, error)
	Resume(context.Context, *karpv1.NodeClaim, *v1alpha1.ProxmoxNodeClass, instance.Intent, *ownership.Mark) (instance.Intent, error)
}

// Stats are what the Launcher records about launches.
type Stats struct {
	Health  *Health
	Metrics instance.Metrics
}

// New returns a Launcher.
func New(deps instance.Deps, planner Planner, types *instancetype.Provider, source boot.Source, stats Stats) *Launcher {
	return &Launcher{deps: deps, planner: planner, types: types, boot: source, stats: stats}
}

// IsLaunched reports whether the launch of a Claim's VM has ended.
func (l *Launcher) IsLaunched(claim *karpv1.NodeClaim) bool { return l.deps.IsLaunched(claim) }

// Progress returns the progress of a Claim's launch as far as this process made it.
func (l *Launcher) Progress(claim *karpv1.NodeClaim) instance.Progress {
	return l.deps.Launches.Progress(string(claim.UID))
}

// Intent returns what is known about a Claim's VM.
func (l *Launcher) Intent(claim *karpv1.NodeClaim) (instance.Intent, bool) {
	return l.deps.IntentOf(claim)
}

// Launch resumes a Claim's launch and returns when its VM runs. It waits for Proxmox's
// tasks. A *instance.LaunchError means that the launch failed permanently,
// instance.ErrClaimBusy that another operation on the Claim is in progress,
// instance.ErrHostAsleep that its Host is being woken, instance.ErrHostPowerUnknown that it
// cannot be read whether it must be; after any other error, call Launch again.
func (l *Launcher) Launch(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	if l.IsLaunched(claim) {
		return nil
	}
	stored, ok := instance.ReadIntent(claim)
	if !ok || instance.LaunchedByOther(claim) {
		return nil
	}
	client, err := l.deps.Clients.Get(stored.Region)
	if err != nil {
		return err
	}
	ctx, release, ok := l.deps.Guard.AcquireLaunch(ctx, string(claim.UID))
	if !ok {
		return instance.ErrClaimBusy
	}
	defer release()
	a := &attempt{
		Launcher: l, client: client, claim: claim, class: class, intent: stored, id: instance.NewIdentity(l.deps.KubeCluster, stored.ID(), claim),
		log: log.FromContext(ctx),
	}
	if err := a.plan(ctx); err != nil {
		return err
	}
	in := a.intent
	a.fresh = l.deps.Launches.Get(string(claim.UID)).IsFresh()
	a.log = log.FromContext(ctx).WithValues("region", in.Region, "host", in.Host, "vmid", in.VMID)
	ctx = log.IntoContext(ctx, a.log)
	if err := a.ensureAwake(); err != nil {
		return err
	}
	l.deps.Launches.RecordStarted(string(claim.UID))
	if err := a.run(ctx); err != nil {
		if errors.Is(context.Cause(ctx), instance.ErrClaimDeleting) {
			return instance.ErrClaimBusy
		}
		return a.finalOrRetry(err)
	}
	return nil
}

// plan sets the plan of the VM. If another process planned it, plan reads how far that came: a
// configured VM shows its plan, and any other is planned again.
func (a *attempt) plan(ctx context.Context) (err error) {
	uid := string(a.claim.UID)
	if in, ok := a.deps.Launches.Plan(uid); ok && in.ProviderID() == a.claim.Status.ProviderID {
		a.intent = in
	} else if err = a.resume(ctx); err != nil {
		return err
	} else {
		a.deps.Launches.RecordResumed(uid, a.intent)
	}
	if a.intent.Parked {
		if a.intent, err = a.planner.Unpark(ctx, a.claim, a.class, a.intent); err != nil {
			return err
		}
	}
	return a.recordPlan(ctx, a.claim, a.class, a.intent)
}

// resume sets the plan of a VM that another process planned.
func (a *attempt) resume(ctx context.Context) (err error) {
	if !a.deps.Settings.VMIDs.Contains(a.intent.VMID) {
		return failf(v1alpha1.EventInvalidLaunchIntent, "VMID %d of NodeClaim %s is not one of the configured VMIDs, which are %d to %d without the excluded ones",
			a.intent.VMID, a.claim.Name, a.deps.Settings.VMIDs.From, a.deps.Settings.VMIDs.To)
	}
	var cloned *ownership.Mark
	if !a.intent.Parked {
		// Its Host is known also while it sleeps.
		template, _ := instance.SelectedTemplate(a.class, a.intent.Zone())
		guest, _ := a.deps.Inventory.View().Guest(a.intent.Region, template)
		a.intent.TemplateHost = guest.Host
		a.deps.Inventory.Ledger().Restore(a.intent.Reservation(a.claim))
		if err := a.ensureAwake(); err != nil {
			return err
		}
		if _, listed := a.deps.Inventory.View().Guest(a.intent.Region, a.intent.VMID); !listed {
			if err := a.verifyHost(); err != nil {
				return err
			}
		}
		vm, pool, err := a.observe(ctx)
		if err != nil && a.intent.IsListed(a.deps.Inventory.View()) {
			return err // it may run: only core's timeout ends the wait for it
		}
		if err != nil {
			return a.finalOrRetry(err)
		}
		a.existing = &vm.Config
		if vmconfig.IsConfigured(vm.Config, a.intent.VMID) {
			a.intent = instance.ObservedIntent(a.intent, vm, pool)
			a.intent.Host = vm.Host
			return nil
		}
		if mark, ok := ownership.Read(vm.Config.Description()); ok {
			cloned = &mark
		}
	}
	if err := a.verifyHost(); err != nil {
		return err
	}
	a.intent, err = a.planner.Resume(ctx, a.claim, a.class, a.intent, cloned)
	if insufficient, ok := errors.AsType[*instance.InsufficientCapacityError](err); ok {
		return &instance.LaunchError{Reason: v1alpha1.EventInsufficientCapacity, Err: insufficient}
	}
	return err
}

// observe reads the VM; the zero value if it does not exist, is not complete, or is another one, which
// the launch distinguishes.
func (a *attempt) observe(ctx context.Context) (vm instance.VM, pool string, err error) {
	host := a.intent.Host
	guest, listed := a.deps.Inventory.View().Guest(a.intent.Region, a.intent.VMID)
	if listed {
		host = guest.Host
	}
	cfg, err := a.client.VMConfig(ctx, host, a.intent.VMID)
	if instance.IsNotVisible(err) || errors.Is(err, proxmox.ErrNotFound) {
		return vm, "", nil
	}
	if owns, _ := a.id.Owns(cfg); err != nil || !owns || cfg.Lock() == instance.LockClone {
		return vm, "", err
	}
	return instance.NewVM(a.id, host, cfg), guest.Pool, nil
}

// verifyHost compares the Host of a VM that is not configured yet with the class. Labels of a Claim can be
// written by others.
func (a *attempt) verifyHost() error {
	if _, selected := instance.SelectedTemplate(a.class, a.intent.Zone()); selected || a.intent.IsUnplaceable() {
		return nil
	}
	return failf(v1alpha1.EventInvalidLaunchIntent, "host %s of region %s in the labels of NodeClaim %s is not one of NodeClass %s: %s",
		a.intent.Host, a.intent.Region, a.claim.Name, a.class.Name, strings.Join(a.class.Status.SelectedZones, ", "))
}

// recordPlan records on the Claim what changed since core stored the plan: the class that the VM is
// launched with, and the resources of a Claim that waited for capacity.
func (l *Launcher) recordPlan(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, in instance.Intent) error {
	if in.ClassHash == class.Hash() && claim.Annotations[v1alpha1.AnnotationNodeClassHash] != in.ClassHash {
		if err := instance.Annotate(ctx, l.deps.Kube, claim, class.LaunchAnnotations()); err != nil {
			return err
		}
	}
	if in.Resources == nil || len(claim.Status.Capacity) > 0 {
		return nil
	}
	return instance.WriteResources(ctx, l.deps.Kube, claim, *in.Resources)
}

// attempt is one run of a Claim's launch.
type attempt struct {
	*Launcher
	client proxmox.Client
	claim  *karpv1.NodeClaim
	class  *v1alpha1.ProxmoxNodeClass
	intent instance.Intent
	id     instance.Identity
	// fresh: this process planned the launch and sent no request to Proxmox, so there
	// is nothing to read first.
	fresh bool
	log   logr.Logger

	// existing is the configuration that was just read; nil if none was.
	existing *proxmox.VMConfig
}

func (a *attempt) run(ctx context.Context) error {
	cfg, err := a.readExisting(ctx)
	if err != nil {
		return err
	}
	if !vmconfig.IsConfigured(cfg, a.intent.VMID) {
		// Clone and boot drive are independent: the MACs in the boot data are those of
		// the intent.
		group, gctx := errgroup.WithContext(ctx)
		group.Go(func() error { return a.ensureCloned(gctx) })
		group.Go(func() error { return a.ensureBootDrive(gctx) })
		group.Go(func() error { return a.ensureRetainedDisks(gctx) })
		if err := group.Wait(); err != nil {
			return err
		}
	}
	if err := a.ensureConfigured(ctx, cfg); err != nil {
		return err
	}
	if err := a.ensureStarted(ctx); err != nil {
		return err
	}
	if err := a.ensureHA(ctx); err != nil {
		return err
	}
	a.reach(instance.PhaseStarted)
	uid := string(a.claim.UID)
	progress := a.deps.Launches.Progress(uid)
	a.deps.Launches.RecordCompleted(uid, a.intent.Host, a.deps.Clock.Now())
	a.log.Info("launched VM", "instance-type", a.intent.InstanceType, "template", a.intent.TemplateID, "timeline", progress.String())
	a.stats.Health.RecordSuccess(a.class.Name)
	a.stats.Metrics.Launched(progress)
	return nil
}

// readExisting reads the VM if an earlier attempt or another process may have created
// it. It returns an empty configuration if there is none, or if it is not complete.
func (a *attempt) readExisting(ctx context.Context) (proxmox.VMConfig, error) {
	if a.fresh {
		return proxmox.VMConfig{}, nil
	}
	if a.existing != nil {
		return *a.existing, nil
	}
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if instance.IsNotVisible(err) || errors.Is(err, proxmox.ErrNotFound) {
		return proxmox.VMConfig{}, nil
	}
	if err != nil {
		return proxmox.VMConfig{}, err
	}
	if owns, _ := a.id.Owns(cfg); !owns {
		// It is still being cloned, or has another owner: ensureCloned distinguishes.
		return proxmox.VMConfig{}, nil
	}
	return cfg, nil
}

// verifyOwner returns an error if the VM with our VMID was not created by this launch.
func (a *attempt) verifyOwner(cfg proxmox.VMConfig) error {
	owns, why := a.id.Owns(cfg)
	switch {
	case owns:
		return nil
	case a.id.HasNewerMark(cfg):
		return fmt.Errorf("reading the ownership mark of VM %d on host %s: %w", a.intent.VMID, a.intent.Host, instance.ErrNewerVersion)
	}
	return failf(v1alpha1.EventVMIDTaken, "VM %d on host %s does not belong to this NodeClaim: %s", a.intent.VMID, a.intent.Host, why)
}

func (a *attempt) reach(phase instance.Phase) {
	since := a.deps.Clock.Since(a.intent.Time)
	a.deps.Launches.Reach(string(a.claim.UID), phase, since)
	a.log.V(1).Info("launch reached phase", "phase", phase, "after", since.Round(10*time.Millisecond).String())
}
