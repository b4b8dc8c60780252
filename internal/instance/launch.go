// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// launch is one run over a Claim's sequence.
type launch struct {
	*Provider
	client proxmox.Client
	claim  *karpv1.NodeClaim
	class  *v1alpha1.ProxmoxNodeClass
	intent Intent
	id     Identity
	// fresh: this process planned the launch and never asked Proxmox for
	// anything, so there is nothing to look for.
	fresh bool
	log   logr.Logger

	progressMu sync.Mutex
	progress   Progress
}

// Completed tells whether this process saw the Claim's launch through, whatever the
// cached Claim says.
func (p *Provider) Completed(claim *karpv1.NodeClaim) bool {
	return p.memory.isCompleted(string(claim.UID))
}

// Launch carries a Claim's launch on from wherever it stands until its VM runs.
// It blocks while Proxmox works. A *LaunchError means that this VM will never
// be, ErrClaimBusy that somebody else has the Claim; any other error means: call
// again.
func (p *Provider) Launch(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	in, ok, err := ReadIntent(claim)
	if errors.Is(err, ErrNewerVersion) {
		return err
	}
	if err != nil {
		return &LaunchError{Reason: ReasonInvalidIntent, err: err}
	}
	if !ok || p.Completed(claim) {
		return nil
	}
	client, err := p.client(in.Region)
	if err != nil {
		return err
	}
	ctx, release, ok := p.guard.launch(ctx, string(claim.UID))
	if !ok {
		return ErrClaimBusy
	}
	defer release()
	// After a restart the ledger knows nothing of launches under way.
	p.Inventory.Ledger().Restore(in.Reservation(claim))
	if in.Parked {
		if in, err = p.unpark(ctx, claim, class, in); err != nil {
			return err
		}
	}
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("region", in.Region, "host", in.Host, "vmid", in.VMID))

	l := &launch{Provider: p, client: client, claim: claim, class: class, intent: in, id: p.identity(in, claim), fresh: p.memory.fresh(string(claim.UID)), log: log.FromContext(ctx)}
	l.progress = readProgress(claim)
	if err := l.run(ctx); err != nil {
		if errors.Is(context.Cause(ctx), errDeleteWins) {
			return ErrClaimBusy
		}
		return l.judge(err)
	}
	return nil
}

func (l *launch) run(ctx context.Context) error {
	cfg, err := l.resume(ctx)
	if err != nil {
		return err
	}
	if !Configured(cfg) {
		// The clone and the boot drive do not need each other: the MACs in the
		// boot data come from the intent.
		group, gctx := errgroup.WithContext(ctx)
		group.Go(func() error { return l.ensureCloned(gctx) })
		group.Go(func() error { return l.ensureBootDrive(gctx) })
		if err := group.Wait(); err != nil {
			return err
		}
	}
	growing, err := l.ensureShaped(ctx, cfg)
	if err != nil {
		return err
	}
	// The start waits for the VM's lock, and so for the disk, by itself: to look at the
	// disk in between would only take time.
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return l.awaitGrown(gctx, growing) })
	group.Go(func() error { return l.ensureStarted(gctx) })
	if err := group.Wait(); err != nil {
		return err
	}
	l.reach(PhaseStarted)
	if err := l.annotate(ctx, map[string]string{
		v1alpha1.AnnotationLaunchProgress:  l.progressText(),
		v1alpha1.AnnotationLaunchCompleted: l.Clock.Now().UTC().Format(time.RFC3339),
	}); err != nil {
		return err
	}
	l.log.Info("launched a VM", "instance-type", l.intent.InstanceType, "template", l.intent.TemplateID, "timeline", l.progress.Timeline)
	l.memory.completed(string(l.claim.UID))
	l.health.succeeded(l.class.Name)
	l.Metrics.launched(l.progress)
	return nil
}

// resume reads the VM as it stands when somebody may have worked on it before:
// an earlier run, or a controller that died. A launch that this process planned
// and never tried has no VM, and needs no call to know.
func (l *launch) resume(ctx context.Context) (proxmox.VMConfig, error) {
	if l.fresh {
		return proxmox.VMConfig{}, nil
	}
	cfg, err := l.client.VMConfig(ctx, l.intent.Host, l.intent.VMID)
	if isHidden(err) || errors.Is(err, proxmox.ErrNotFound) {
		return proxmox.VMConfig{}, nil
	}
	if err != nil {
		return proxmox.VMConfig{}, err
	}
	if ok, _ := l.id.Owns(cfg); !ok {
		// Either still being cloned or somebody else's: ensureCloned tells.
		return proxmox.VMConfig{}, nil
	}
	return cfg, nil
}

// refuse tells why the VM under our VMID is not the one that this launch made; nil
// where it is.
func (l *launch) refuse(cfg proxmox.VMConfig) error {
	ours, why := l.id.Owns(cfg)
	switch {
	case ours:
		return nil
	case l.id.HasNewerMark(cfg):
		return fmt.Errorf("reading the ownership mark of VM %d on host %s, %w", l.intent.VMID, l.intent.Host, ErrNewerVersion)
	}
	return &LaunchError{Reason: ReasonVMIDTaken, err: fmt.Errorf("VM %d on host %s is not ours: %s", l.intent.VMID, l.intent.Host, why)}
}

func (l *launch) ensureStarted(ctx context.Context) error {
	if !l.fresh {
		state, err := l.client.VMStatus(ctx, l.intent.Host, l.intent.VMID)
		if err != nil {
			return err
		}
		if state.Running {
			return nil
		}
	}
	if err := l.refuseRivals(); err != nil {
		return err
	}
	task, err := l.client.StartVM(ctx, l.intent.Host, l.intent.VMID)
	if err != nil {
		return err
	}
	err = l.wait(ctx, task)
	if err == nil || errors.Is(err, proxmox.ErrRunning) {
		return nil
	}
	if isTransient(err) {
		return fmt.Errorf("starting VM %d on host %s, %w", l.intent.VMID, l.intent.Host, err)
	}
	return &LaunchError{Reason: ReasonStart, err: fmt.Errorf("starting VM %d on host %s: %s", l.intent.VMID, l.intent.Host, l.cause(ctx, task, err))}
}

// cause finds why a task failed: up to 8.4 its last word is only "QEMU exited
// with code 1", and the reason stands in the log above.
func (l *launch) cause(ctx context.Context, task proxmox.UPID, err error) string {
	lines, logErr := l.client.TaskLog(ctx, task)
	if logErr != nil {
		return err.Error()
	}
	if why := causeFromLog(lines); why != "" {
		return why
	}
	return err.Error()
}

func (l *launch) reach(phase Phase) {
	l.progressMu.Lock()
	defer l.progressMu.Unlock()
	since := l.Clock.Since(l.intent.Time)
	if l.progress.reach(phase, since) {
		l.memory.overcome(string(l.claim.UID))
	}
	l.log.V(1).Info("a launch reached a phase", "phase", phase, "after", since.Round(10*time.Millisecond).String())
}

func (l *launch) progressText() string {
	l.progressMu.Lock()
	defer l.progressMu.Unlock()
	return l.progress.encode()
}
