// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// lockClone marks a configuration that a clone is still writing.
const lockClone = "clone"

// ensureCloned returns when the VM exists, complete and ours. An accepted clone
// proves nothing: two requests for one VMID are both accepted, and the loser's
// task fails. Ours is what our own task made, or what says so when read back.
func (l *launch) ensureCloned(ctx context.Context) error {
	if l.fresh {
		if err := l.clone(ctx); err != nil {
			return err
		}
		l.reach(PhaseCloned)
		return nil
	}
	for {
		again, err := l.settleClone(ctx)
		if err != nil {
			return err
		}
		if !again {
			l.reach(PhaseCloned)
			return nil
		}
		if err := l.pause(ctx, settlePause); err != nil {
			return err
		}
	}
}

// settlePause is how often a clone that somebody else started is looked at.
const settlePause = time.Second

// settleClone looks at what an earlier try left, and does what is missing. True
// means: look again in a moment.
func (l *launch) settleClone(ctx context.Context) (again bool, err error) {
	task := l.memory.task(l.claim)
	if task != "" {
		// Its outcome is what counts, and it may still be at work when the
		// configuration looks complete.
		err := l.awaitClone(ctx, task)
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		// A passing failure is tried again once we have looked; a task that nobody
		// knows any more says nothing.
		if err != nil && !isTransient(err) && !errors.Is(err, proxmox.ErrNotFound) {
			return false, err
		}
	}
	cfg, err := l.client.VMConfig(ctx, l.intent.Host, l.intent.VMID)
	switch {
	case isHidden(err):
		return l.settleHidden(ctx)
	case errors.Is(err, proxmox.ErrNotFound):
		busy, err := l.cloneUnderWay(ctx)
		if err != nil || busy {
			return busy, err
		}
		return false, l.clone(ctx)
	case err != nil:
		return false, err
	}
	if cfg.Lock() == lockClone {
		return l.settleLocked(ctx)
	}
	return false, l.refuse(cfg)
}

// settleHidden deals with a VM that the token may not see. A token with rights on a
// pool sees a clone once it is a member: at the very end. What is hidden although no
// clone is at work is not ours.
func (l *launch) settleHidden(ctx context.Context) (again bool, err error) {
	if busy, err := l.cloneUnderWay(ctx); busy || err != nil {
		return busy, err
	}
	// It may have ended between the two looks.
	_, err = l.client.VMConfig(ctx, l.intent.Host, l.intent.VMID)
	if l.intent.Pool == "" || !isHidden(err) {
		return err == nil || errors.Is(err, proxmox.ErrNotFound), ignoreNotFound(err)
	}
	return false, &LaunchError{Reason: ReasonVMIDTaken, err: fmt.Errorf("VM %d on host %s is not ours: it is not in pool %s", l.intent.VMID, l.intent.Host, l.intent.Pool)}
}

// settleLocked deals with a configuration that a clone still writes. It is never
// adopted and never deleted: whoever writes it is waited for.
func (l *launch) settleLocked(ctx context.Context) (again bool, err error) {
	busy, err := l.cloneUnderWay(ctx)
	if err != nil || busy {
		return busy, err
	}
	// It may have ended between the two looks.
	cfg, err := l.client.VMConfig(ctx, l.intent.Host, l.intent.VMID)
	if err != nil {
		return errors.Is(err, proxmox.ErrNotFound), ignoreNotFound(err)
	}
	if cfg.Lock() != lockClone {
		return true, nil
	}
	return false, &LaunchError{Reason: ReasonStaleLock, err: errors.New(leftover(l.id, l.intent.Host, lockClone))}
}

// leftover says what to do about a configuration that a dead task left locked: a
// token can neither unlock nor destroy it.
func leftover(id Identity, host, lock string) string {
	command := fmt.Sprintf("qm unlock %d && qm destroy %d", id.VMID, id.VMID)
	if lock == lockDestroyed {
		// Its configuration names no disks any more.
		command = fmt.Sprintf("qm destroy %d --skiplock 1 --destroy-unreferenced-disks 1", id.VMID)
	}
	return fmt.Sprintf("VM %d on host %s is locked (%s) by a task that no longer runs, as a crash leaves it; after making sure that nobody needs it, run there as root: %s",
		id.VMID, host, lock, command)
}

// cloneUnderWay tells whether a clone of our Template runs on that Host. Proxmox
// files a clone under its source, not under the new VMID, so it may be another
// Claim's: waiting for that one costs a moment, doubling ours a VM.
func (l *launch) cloneUnderWay(ctx context.Context) (bool, error) {
	if l.memory.noneOpen(string(l.claim.UID)) {
		return false, nil
	}
	tasks, err := l.client.RunningTasks(ctx, l.intent.TemplateHost, kindClone)
	if err != nil {
		return false, err
	}
	for _, task := range tasks {
		if task.ID == fmt.Sprint(l.intent.TemplateID) {
			return true, nil
		}
	}
	return false, nil
}

// clone asks for the clone and waits for its end.
func (l *launch) clone(ctx context.Context) error {
	done, err := l.slots.acquire(ctx, slotOf(l.Inventory.View(), kindClone, l.intent.Region, l.intent.Host, l.intent.Storage))
	if err != nil {
		return err
	}
	defer done()
	l.memory.asking(string(l.claim.UID))
	task, err := l.client.CloneVM(ctx, proxmox.CloneRequest{
		Host: l.intent.TemplateHost, TemplateID: l.intent.TemplateID,
		Target: l.target(), VMID: l.intent.VMID, Name: l.claim.Name,
		Description: Description(l.id, l.notes(), l.intent.Binding, l.class.Spec.HookScripts),
		Full:        l.intent.Full, Storage: l.cloneStorage(), Pool: l.intent.Pool,
	})
	if err != nil {
		if !errors.Is(err, proxmox.ErrUnknownOutcome) && ctx.Err() == nil {
			l.memory.settled(string(l.claim.UID))
		}
		return cloneError(err)
	}
	l.memory.setTask(l.claim, task)
	l.reach(PhaseCloning)
	if err := l.annotate(ctx, map[string]string{
		v1alpha1.AnnotationLaunchTask:     string(task),
		v1alpha1.AnnotationLaunchProgress: l.progressText(),
	}); err != nil {
		return err
	}
	return l.awaitClone(ctx, task)
}

// awaitClone waits for the end of a clone task. Once it has ended, well or not,
// nothing of ours is at work any more. A task that cannot be read may go on.
func (l *launch) awaitClone(ctx context.Context, task proxmox.UPID) error {
	status, err := l.Provider.wait(ctx, l.client, task, durationKey(l.intent.Region, l.intent.Host, l.intent.Storage))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		// It goes on without us, and the claim's removal will cancel it.
		took := l.Settings.TaskTimeout
		l.durations.Observe(kindClone, durationKey(l.intent.Region, l.intent.Host, l.intent.Storage), took, took*2)
		return &LaunchError{Reason: ReasonSlowClone, err: fmt.Errorf("cloning template %d on host %s takes longer than %s", l.intent.TemplateID, l.intent.TemplateHost, took)}
	}
	if !status.Ended() && !errors.Is(err, proxmox.ErrNotFound) {
		return err
	}
	l.memory.settled(string(l.claim.UID))
	if err == nil {
		return nil
	}
	return cloneError(fmt.Errorf("cloning template %d on host %s to VM %d, %w", l.intent.TemplateID, l.intent.TemplateHost, l.intent.VMID, err))
}

func cloneError(err error) error {
	switch {
	case isTransient(err):
		return err
	case errors.Is(err, proxmox.ErrExists):
		return &LaunchError{Reason: ReasonVMIDTaken, err: err}
	case errors.Is(err, proxmox.ErrStorageFull):
		return &LaunchError{Reason: ReasonStorageFull, err: err}
	default:
		return &LaunchError{Reason: ReasonClone, err: err}
	}
}

func (l *launch) target() string {
	if l.intent.Host == l.intent.TemplateHost {
		return ""
	}
	return l.intent.Host
}

// cloneStorage is sent only with full clones: Proxmox refuses it with linked ones.
func (l *launch) cloneStorage() string {
	if l.intent.Full {
		return l.intent.Storage
	}
	return ""
}

func (l *launch) notes() Notes {
	return Notes{
		Claim: l.claim.Name, NodePool: nodePoolOf(l.claim), NodeClass: l.class.Name,
		InstanceType: l.intent.InstanceType, CapacityType: l.intent.CapacityType,
	}
}

func ignoreNotFound(err error) error {
	if errors.Is(err, proxmox.ErrNotFound) {
		return nil
	}
	return err
}
