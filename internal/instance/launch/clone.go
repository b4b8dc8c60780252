// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"errors"
	"fmt"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// ensureCloned returns when the VM exists, is complete and ours. Proxmox accepts two
// clones to one VMID, and the task of one fails, so an accepted clone does not mean
// that the VM is ours: it is if our task succeeded, or if its ownership mark matches.
func (a *attempt) ensureCloned(ctx context.Context) error {
	if a.fresh {
		if err := a.clone(ctx); err != nil {
			return err
		}
		a.reach(instance.PhaseCloned)
		return nil
	}
	for {
		retry, err := a.resumeClone(ctx)
		if err != nil {
			return err
		}
		if !retry {
			a.reach(instance.PhaseCloned)
			return nil
		}
		select {
		case <-a.deps.Clock.After(clonePollInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// clonePollInterval is how often a clone that another process started is checked.
const clonePollInterval = time.Second

// resumeClone reads what an earlier attempt did, and does what is missing. It returns
// true if the clone is still in progress.
func (a *attempt) resumeClone(ctx context.Context) (retry bool, err error) {
	if task := a.deps.Launches.CloneTask(string(a.claim.UID)); task != "" {
		// The task may still run when the configuration seems complete.
		a.deps.Launches.RecordCloneStarted(string(a.claim.UID), task)
		err := a.waitCloned(ctx, task)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		// After a transient error, and if Proxmox no longer knows the task, the VM itself
		// shows the result.
		if err != nil && !proxmox.IsTransient(err) && !errors.Is(err, proxmox.ErrNotFound) {
			return false, err
		}
	}
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	switch {
	case instance.IsNotVisible(err):
		return a.resumeInvisible(ctx)
	case errors.Is(err, proxmox.ErrNotFound):
		return a.resumeAbsent(ctx)
	case err != nil:
		return false, err
	}
	if cfg.Lock() == instance.LockClone {
		return a.resumeLocked(ctx)
	}
	return false, a.verifyOwner(cfg)
}

// resumeAbsent handles a VM that does not exist: it waits for a clone that may create it. If none
// runs, it clones.
func (a *attempt) resumeAbsent(ctx context.Context) (retry bool, err error) {
	if a.deps.Launches.Get(string(a.claim.UID)).HasNoClone() {
		return false, a.clone(ctx)
	}
	if running, err := a.isCloneRunning(ctx); err != nil || running {
		return running, err
	}
	// The clone may have ended between the two requests.
	_, err = a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	switch {
	case errors.Is(err, proxmox.ErrNotFound):
		return false, a.clone(ctx)
	case err == nil, instance.IsNotVisible(err):
		return true, nil
	}
	return false, err
}

// resumeInvisible handles a VM that the token may not read. A token with privileges on a
// resource pool can read a clone once it is a member, which is at the end of the clone.
// If no clone runs, a VM that cannot be read is not ours.
func (a *attempt) resumeInvisible(ctx context.Context) (retry bool, err error) {
	if running, err := a.isCloneRunning(ctx); running || err != nil {
		return running, err
	}
	// The clone may have ended between the two requests.
	_, err = a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if a.intent.ResourcePool == "" || !instance.IsNotVisible(err) {
		return err == nil || errors.Is(err, proxmox.ErrNotFound), instance.IgnoreNotFound(err)
	}
	return false, failf(v1alpha1.EventVMIDTaken, "VM %d on host %s does not belong to this NodeClaim: it is not in resource pool %s", a.intent.VMID, a.intent.Host, a.intent.ResourcePool)
}

// resumeLocked handles a configuration that a clone still writes: it waits for the
// clone. If none runs, the lock is stale.
func (a *attempt) resumeLocked(ctx context.Context) (retry bool, err error) {
	running, err := a.isCloneRunning(ctx)
	if err != nil || running {
		return running, err
	}
	// The clone may have ended between the two requests.
	cfg, err := a.client.VMConfig(ctx, a.intent.Host, a.intent.VMID)
	if err != nil {
		return errors.Is(err, proxmox.ErrNotFound), instance.IgnoreNotFound(err)
	}
	if cfg.Lock() != instance.LockClone {
		return true, nil
	}
	return false, failf(v1alpha1.EventStaleLock, "%s", vm.StaleLockMessage(a.id.VMID, a.intent.Host, instance.LockClone))
}

// isCloneRunning reports whether a clone of our Template runs on its Host that may be ours:
// Proxmox lists a clone under the VMID of its source. Waiting for one of an earlier process is
// cheaper than cloning twice.
func (a *attempt) isCloneRunning(ctx context.Context) (bool, error) {
	if a.deps.Launches.Get(string(a.claim.UID)).HasNoClone() {
		return false, nil
	}
	tasks, err := a.client.RunningTasks(ctx, a.intent.TemplateHost, instance.TaskClone)
	if err != nil {
		return false, err
	}
	for _, task := range tasks {
		if task.ID == fmt.Sprint(a.intent.TemplateID) && !a.deps.Launches.IsCloneOfOther(string(a.claim.UID), task.UPID) {
			return true, nil
		}
	}
	return false, nil
}

// clone clones the Template and waits for the end of the task.
func (a *attempt) clone(ctx context.Context) error {
	request, err := a.cloneRequest()
	if err != nil {
		return err
	}
	release, err := a.deps.Tasks.AcquireSlot(ctx, instance.TaskClone, a.intent.Region, a.intent.Host, a.intent.Storage)
	if err != nil {
		return err
	}
	defer release()
	if host, _ := a.deps.Inventory.View().Host(a.intent.Region, a.intent.Host); host.Has(inventory.Offline) {
		// Proxmox would clone to it, and the VM could not be deleted.
		return failf(v1alpha1.EventInsufficientCapacity, "cloning template %d: host %s went offline", a.intent.TemplateID, a.intent.Host)
	}
	uid := string(a.claim.UID)
	a.deps.Launches.RecordCloneRequested(uid)
	task, err := a.client.CloneVM(ctx, request)
	if err != nil {
		if !errors.Is(err, proxmox.ErrUnknownOutcome) && ctx.Err() == nil {
			a.deps.Launches.RecordCloneEnded(uid)
		}
		return cloneError(err)
	}
	a.deps.Launches.RecordCloneStarted(uid, task)
	a.reach(instance.PhaseCloning)
	return a.waitCloned(ctx, task)
}

func (a *attempt) cloneRequest() (proxmox.CloneRequest, error) {
	notes := instance.NewNotes(a.claim.Name, a.claim.Labels[karpv1.NodePoolLabelKey], a.class.Name, a.intent)
	text, err := instance.RenderDescription(a.claim, a.class, a.intent)
	if err != nil {
		return proxmox.CloneRequest{}, failf(v1alpha1.EventBootDataFailed, "rendering the description of VM %d: %w", a.intent.VMID, err)
	}
	notes.Description = text
	request := proxmox.CloneRequest{
		Host: a.intent.TemplateHost, TemplateID: a.intent.TemplateID, VMID: a.intent.VMID, Name: instance.NodeName(a.claim, a.intent),
		Description: instance.Description(instance.NewMark(a.id, a.intent, a.class.Spec.HookScripts), notes),
		Full:        a.intent.FullClone, Pool: a.intent.ResourcePool,
	}
	if a.intent.Host != a.intent.TemplateHost {
		request.Target = a.intent.Host
	}
	if a.intent.FullClone {
		request.Storage = a.intent.Storage // Proxmox rejects it for linked clones
	}
	return request, nil
}

// waitCloned waits for the end of a clone task, and records it. If the status cannot be
// read, the task may still run.
func (a *attempt) waitCloned(ctx context.Context, task proxmox.UPID) error {
	began := a.deps.Clock.Now()
	status, err := a.deps.Tasks.Wait(ctx, a.client, task)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) && status.Running {
		// The task continues; the deletion of the Claim cancels it.
		took := a.deps.Settings.TaskTimeout
		a.stats.Health.observeClone(a.intent, took*3/2)
		return failf(v1alpha1.EventCloneTooSlow, "cloning template %d on host %s takes longer than %s", a.intent.TemplateID, a.intent.TemplateHost, took)
	}
	if !status.Ended() && !errors.Is(err, proxmox.ErrNotFound) {
		return err
	}
	a.deps.Launches.RecordCloneEnded(string(a.claim.UID))
	if err == nil {
		a.stats.Health.observeClone(a.intent, a.deps.Clock.Since(began))
		return nil
	}
	return cloneError(fmt.Errorf("cloning template %d on host %s to VM %d: %w", a.intent.TemplateID, a.intent.TemplateHost, a.intent.VMID, err))
}

func cloneError(err error) error {
	switch {
	case proxmox.IsTransient(err):
		return err
	case errors.Is(err, proxmox.ErrExists):
		return &instance.LaunchError{Reason: v1alpha1.EventVMIDTaken, Err: err}
	case errors.Is(err, proxmox.ErrStorageFull):
		return &instance.LaunchError{Reason: v1alpha1.EventStorageFull, Err: err}
	default:
		return &instance.LaunchError{Reason: v1alpha1.EventCloneFailed, Err: err}
	}
}
