// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// BlockedError says why a VM cannot be removed now. Somebody else has to act, or
// time has to pass; the removal is tried again.
type BlockedError struct {
	Reason  string
	Message string
}

func (e *BlockedError) Error() string { return e.Message }

// Reasons of a BlockedError.
const (
	BlockedProtected       = "VMProtected"
	BlockedLocked          = "VMLocked"
	BlockedHostUnreachable = "HostUnreachable"
	BlockedMarkLost        = "OwnershipMarkLost"
	BlockedHidden          = "VMHidden"
	BlockedNewer           = "MadeByNewerController"
	BlockedNotAdopted      = "VMNotAdopted"
)

// Delete removes a Claim's VM and all that was made for it. It is idempotent and
// answers within AttemptPatience: gone means proven gone, otherwise the removal is
// under way and wants another call. Launch and Delete serialise; Delete wins.
func (p *Provider) Delete(ctx context.Context, claim *karpv1.NodeClaim) (gone bool, err error) {
	target, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		// Not one of ours: nothing of ours can be there.
		return true, nil
	}
	c, err := p.client(target.Region)
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.Settings.AttemptPatience)
	defer cancel()
	release, ok := p.guard.delete(ctx, string(claim.UID))
	if !ok {
		return false, nil
	}
	defer release()

	r := &removal{Provider: p, client: c, claim: claim, id: p.identityOf(target, claim)}
	if r.intent, r.hasIntent, err = ReadIntent(claim); err != nil {
		// The VM itself says whose it is; the collector finds the boot drive.
		log.FromContext(ctx).Error(err, "deleting a VM without its launch intent")
		r.hasIntent, r.unreadable = false, true
	}
	gone, err = r.run(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return gone, err
}

// removal is one run at removing a Claim's VM.
type removal struct {
	*Provider
	client    proxmox.Client
	claim     *karpv1.NodeClaim
	id        Identity
	intent    Intent
	hasIntent bool
	// unreadable: there is an intent, but this controller cannot read it.
	unreadable bool
}

func (r *removal) run(ctx context.Context) (bool, error) {
	outcome := vmAbsent
	host, ok, err := r.locate(ctx)
	if err != nil {
		return false, err
	}
	if ok {
		if err := r.refuseUnadopted(ctx, host); err != nil {
			return false, err
		}
		_, outcome, err = r.removeVM(ctx, r.client, r.id, host)
		if err != nil && r.hostIsGone(ctx, host, err) {
			log.FromContext(ctx).Info("the host has left its cluster, and the VM with it", "vmid", r.id.VMID, "host", host)
			return r.finish(ctx)
		}
		if err != nil {
			return false, err
		}
	}
	settled, err := r.settled(ctx, outcome, host)
	if err != nil || !settled {
		return false, err
	}
	if err := r.sweep(ctx); err != nil {
		return false, err
	}
	return r.finish(ctx)
}

// settled tells whether nothing of the VM is left or on its way.
func (r *removal) settled(ctx context.Context, state outcome, host string) (bool, error) {
	var ended bool
	var err error
	switch state {
	case vmRemoved:
		return true, nil
	case vmAbsent:
		// Without a Host it was not in a list that was read just now.
		if host != "" {
			if err := r.Inventory.Refresh(ctx, r.id.Region); err != nil {
				return false, blockedBy(err, fmt.Sprintf("region %s does not answer", r.id.Region))
			}
		}
		return r.provenGone(ctx)
	case vmCloning:
		if ended, err = r.cloneSettled(ctx); err == nil && ended {
			err = r.deadLock(ctx, host, lockClone)
		}
	case vmDestroying:
		if ended, err = r.destroySettled(ctx, host); err == nil && ended {
			err = r.deadLock(ctx, host, lockDestroyed)
		}
	case vmGoing:
	}
	return false, err
}

// finish gives back what is not on Proxmox.
func (r *removal) finish(ctx context.Context) (bool, error) {
	if err := r.Boot.Revoke(ctx, r.claim); err != nil {
		return false, fmt.Errorf("deleting the join token, %w", err)
	}
	r.Inventory.Release(string(r.claim.UID))
	r.memory.forget(string(r.claim.UID))
	return true, nil
}

// hostIsGone tells whether the Host that holds the VM was removed from its Cluster
// for good: the Cluster answers and does not know the Host, whatever it still lists
// of its guests, and that has been so for long enough.
func (r *removal) hostIsGone(ctx context.Context, host string, err error) bool {
	var blocked *BlockedError
	if !errors.As(err, &blocked) || blocked.Reason != BlockedHostUnreachable || r.claim.DeletionTimestamp.IsZero() ||
		r.Clock.Since(r.claim.DeletionTimestamp.Time) < r.Settings.HostRemovedAfter {
		return false
	}
	if r.Inventory.Refresh(ctx, r.id.Region) != nil {
		return false
	}
	_, member := r.Inventory.View().Host(r.id.Region, host)
	return !member
}

// locate says where the VM is: where it was last seen, else where the Cluster lists
// it now. Where it was meant to be says nothing: it may have been migrated since.
func (r *removal) locate(ctx context.Context) (string, bool, error) {
	if guest, ok := r.Inventory.View().Guest(r.id.Region, r.id.VMID); ok {
		return guest.Host, true, nil
	}
	if err := r.Inventory.Refresh(ctx, r.id.Region); err != nil {
		return "", false, blockedBy(err, fmt.Sprintf("region %s does not answer", r.id.Region))
	}
	guest, ok := r.Inventory.View().Guest(r.id.Region, r.id.VMID)
	return guest.Host, ok, nil
}

// provenGone answers whether nothing of the VM is left or on its way: it may
// have moved to another Host, or its clone may still be at work.
func (r *removal) provenGone(ctx context.Context) (bool, error) {
	if guest, ok := r.Inventory.View().Guest(r.id.Region, r.id.VMID); ok {
		cfg, err := r.client.VMConfig(ctx, guest.Host, r.id.VMID)
		if errors.Is(err, proxmox.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, blockedBy(err, fmt.Sprintf("host %s does not answer", guest.Host))
		}
		if ours, _ := r.id.Owns(cfg); ours || r.id.MarkedNewer(cfg) || cfg.Lock() != "" {
			return false, nil
		}
		// Somebody else's VM has the VMID now, so ours is gone.
	} else if snapshot := r.Inventory.View().Snapshots[r.id.Region]; snapshot != nil {
		err := provenAbsent(ctx, r.client, snapshot, r.id.VMID)
		if isHidden(err) {
			return r.hiddenSettled(ctx, snapshot)
		}
		if !errors.Is(err, proxmox.ErrNotFound) {
			return false, blockedBy(err, fmt.Sprintf("whether VM %d is gone cannot be told", r.id.VMID))
		}
	}
	if (!r.hasIntent && !r.unreadable) || r.claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "" {
		return true, nil
	}
	return r.cloneSettled(ctx)
}

// hiddenSettled judges a VM that the token may not see. A token with rights on a pool
// sees what is in it, and a clone becomes a member at its very end. So once no clone
// is at work, what is still hidden was not made by us; unless an admin has moved it
// since, which nobody does with a VM that never ran.
func (r *removal) hiddenSettled(ctx context.Context, snapshot *inventory.Snapshot) (bool, error) {
	if !r.hasIntent || r.intent.Pool == "" || r.claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != "" {
		return false, &BlockedError{Reason: BlockedHidden, Message: fmt.Sprintf(
			"the token may not see VM %d of region %s, so that it cannot be removed: give it VM.Audit there, put the VM back into its pool, or remove it by hand", r.id.VMID, r.id.Region)}
	}
	if ended, err := r.cloneSettled(ctx); err != nil || !ended {
		return false, err
	}
	if !isHidden(provenAbsent(ctx, r.client, snapshot, r.id.VMID)) {
		return false, nil // it was ours after all, or is gone: the next call tells
	}
	log.FromContext(ctx).Info("left a VM alone that the token may not see: it is somebody else's, or, if it is locked (clone), what a crash left of ours, which root may remove",
		"vmid", r.id.VMID, "region", r.id.Region)
	return true, nil
}

// isHidden tells whether a VM is there that the token may not see.
func isHidden(err error) bool {
	_, hidden := errors.AsType[*proxmox.ForbiddenError](err)
	return hidden
}

// cloneSettled makes sure that no clone of an unfinished launch will still make
// the VM after we looked.
func (r *removal) cloneSettled(ctx context.Context) (bool, error) {
	if r.memory.noneOpen(string(r.claim.UID)) {
		return true, nil
	}
	if !r.hasIntent && !r.unreadable {
		return true, nil
	}
	mine := r.memory.task(r.claim)
	for _, host := range r.cloners() {
		tasks, err := r.client.RunningTasks(ctx, host, kindClone)
		if err != nil {
			return false, blockedBy(err, fmt.Sprintf("host %s does not answer", host))
		}
		for _, task := range tasks {
			switch {
			case task.UPID == mine:
				// Cancelling may or may not roll back: the next call looks again.
				return false, ignoreNotFound(r.client.CancelTask(ctx, task.UPID))
			case mine == "" && (r.unreadable || task.ID == fmt.Sprint(r.intent.TemplateID)):
				// It could be ours, from a controller that died before it noted the task.
				return false, nil
			}
		}
	}
	return true, nil
}

// cloners are the Hosts on which the clone could be at work: the Template's, or any
// where the intent cannot be read that names it.
func (r *removal) cloners() []string {
	if !r.unreadable {
		return []string{r.intent.TemplateHost}
	}
	snapshot := r.Inventory.View().Snapshots[r.id.Region]
	if snapshot == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(snapshot.Hosts))
}

// deadLock reports a lock that nobody works under any more: a clone or a destroy
// died, with its Host or by somebody's hand, and only root can take it away. Nil
// when the lock is gone after all.
func (r *removal) deadLock(ctx context.Context, host, lock string) error {
	cfg, err := r.client.VMConfig(ctx, host, r.id.VMID)
	if err != nil {
		return blockedBy(ignoreNotFound(err), fmt.Sprintf("host %s does not answer", host))
	}
	if cfg.Lock() != lock {
		return nil
	}
	return &BlockedError{Reason: BlockedLocked, Message: leftover(r.id, host, lock)}
}

// destroySettled tells whether no removal of the VM is at work on its Host.
func (r *removal) destroySettled(ctx context.Context, host string) (bool, error) {
	tasks, err := r.client.RunningTasks(ctx, host, kindDestroy)
	if err != nil {
		return false, blockedBy(err, fmt.Sprintf("host %s does not answer", host))
	}
	return !slices.ContainsFunc(tasks, func(task proxmox.TaskStatus) bool { return task.ID == strconv.Itoa(r.id.VMID) }), nil
}

// sweep removes the boot drive, if the guest still had it.
func (r *removal) sweep(ctx context.Context) error {
	taken := r.claim.Annotations[v1alpha1.AnnotationBootDataStatus] == v1alpha1.BootDataInitialized
	_, member := r.Inventory.View().Host(r.id.Region, r.intent.Host)
	if r.hasIntent && r.intent.ISOStorage != "" && !taken && member {
		if err := r.deleteVolume(ctx, r.client, r.intent.Host, isoVolume(r.intent.ISOStorage, r.id)); err != nil {
			return blockedBy(err, fmt.Sprintf("host %s does not answer", r.intent.Host))
		}
	}
	return nil
}

// lockDestroyed marks a configuration whose VM is being destroyed.
const lockDestroyed = "destroyed"

// outcome of one try at removing a VM.
type outcome int

const (
	// vmAbsent: our VM is not on that Host, or its VMID is somebody else's now.
	vmAbsent outcome = iota
	// vmRemoved: we destroyed it.
	vmRemoved
	// vmGoing: it is on its way out; look again.
	vmGoing
	// vmCloning: a clone still writes it.
	vmCloning
	// vmDestroying: a destroy has begun to take it apart.
	vmDestroying
)

// removeVM stops and destroys the VM, once it is known to be the one. Somebody
// else's VM is left alone. It tells what it read of the VM.
func (p *Provider) removeVM(ctx context.Context, c proxmox.Client, id Identity, host string) (proxmox.VMConfig, outcome, error) {
	cfg, err := c.VMConfig(ctx, host, id.VMID)
	if errors.Is(err, proxmox.ErrNotFound) {
		return cfg, vmAbsent, nil
	}
	if err != nil {
		return cfg, vmGoing, blockedBy(err, fmt.Sprintf("host %s does not answer; VM %d will be removed when it is back", host, id.VMID))
	}
	if state, err := mayRemove(ctx, id, host, cfg); state != vmRemoved || err != nil {
		return cfg, state, err
	}
	state, err := p.destroy(ctx, c, id, host, cfg)
	return cfg, state, err
}

// mayRemove answers vmRemoved where nothing speaks against the removal of a VM.
func mayRemove(ctx context.Context, id Identity, host string, cfg proxmox.VMConfig) (outcome, error) {
	switch lock := cfg.Lock(); lock {
	case "":
	case lockClone:
		return vmCloning, nil
	case lockDestroyed:
		return vmDestroying, nil
	default:
		return vmGoing, &BlockedError{Reason: BlockedLocked, Message: fmt.Sprintf("VM %d on host %s is locked (%s); it will be removed when the lock is gone", id.VMID, host, lock)}
	}
	if id.LostMark(cfg) {
		return vmGoing, &BlockedError{Reason: BlockedMarkLost, Message: fmt.Sprintf(
			"the notes of VM %d on host %s have lost our ownership mark, and what does not carry it is not destroyed; put this line back into the notes, or remove the VM by hand: %s", id.VMID, host, id.mark())}
	}
	if id.MarkedNewer(cfg) {
		return vmGoing, &BlockedError{Reason: BlockedNewer, Message: fmt.Sprintf(
			"the ownership mark of VM %d on host %s cannot be read in full, and what is not understood is not destroyed: %s", id.VMID, host, ErrNewer)}
	}
	if ours, why := id.Owns(cfg); !ours {
		log.FromContext(ctx).Info("left a VM alone that is not ours", "vmid", id.VMID, "host", host, "why", why)
		return vmAbsent, nil
	}
	if cfg.Protected() {
		return vmGoing, &BlockedError{Reason: BlockedProtected, Message: fmt.Sprintf("VM %d on host %s is protected; to let it go, run: qm set %d --protection 0", id.VMID, host, id.VMID)}
	}
	return vmRemoved, nil
}

func (p *Provider) destroy(ctx context.Context, c proxmox.Client, id Identity, host string, cfg proxmox.VMConfig) (outcome, error) {
	storage := ""
	if disk, ok := cfg.BootDisk(); ok {
		storage = disk.Storage
	}
	key := durationKey(id.Region, host, storage)
	if volumes := foreignVolumes(id, cfg); len(volumes) > 0 {
		log.FromContext(ctx).Info("volumes of other owners are attached; they stay", "vmid", id.VMID, "host", host, "volumes", volumes)
	}
	err := p.powerOff(ctx, c, id, host, key)
	if errors.Is(err, proxmox.ErrNotFound) {
		return vmAbsent, nil
	}
	if err != nil {
		return vmGoing, blockedBy(err, fmt.Sprintf("host %s does not answer", host))
	}
	done, err := p.slots.acquire(ctx, slotOf(p.Inventory.View(), kindDestroy, id.Region, host, storage))
	if err != nil {
		return vmGoing, err
	}
	defer done()
	task, err := c.DestroyVM(ctx, host, id.VMID)
	var status proxmox.TaskStatus
	if err == nil {
		status, err = p.wait(ctx, c, task, key)
	}
	if errors.Is(err, proxmox.ErrRunning) {
		// Somebody started it in between: the next call stops it again.
		return vmGoing, nil
	}
	if errors.Is(err, proxmox.ErrNotFound) {
		return vmAbsent, nil
	}
	if err != nil {
		return vmGoing, blockedBy(err, fmt.Sprintf("host %s does not answer", host))
	}
	if strings.HasPrefix(status.Exit, "WARNINGS") {
		lines, _ := c.TaskLog(ctx, task)
		log.FromContext(ctx).Info("the VM is gone, but Proxmox warned", "vmid", id.VMID, "host", host, "log", strings.Join(lines, " | "))
	}
	log.FromContext(ctx).Info("removed a VM", "region", id.Region, "host", host, "vmid", id.VMID)
	p.Inventory.ObserveGone(id.Region, id.VMID)
	return vmRemoved, nil
}

// powerOff ends the guest: at once, or with a bounded time to shut down. A
// shutdown that outlasts one Delete is waited for by the next.
func (p *Provider) powerOff(ctx context.Context, c proxmox.Client, id Identity, host, key string) error {
	task, under := p.memory.shutdown(id.ClaimUID)
	if !under {
		var err error
		if p.Settings.ShutdownTimeout > 0 {
			task, err = c.ShutdownVM(ctx, host, id.VMID, p.Settings.ShutdownTimeout)
			p.memory.setShutdown(id.ClaimUID, task)
		} else {
			task, err = c.StopVM(ctx, host, id.VMID)
		}
		if err != nil {
			return err
		}
	}
	_, err := p.wait(ctx, c, task, key)
	if ctx.Err() == nil {
		p.memory.setShutdown(id.ClaimUID, "")
	}
	return err
}

// volumePattern finds the VMID in a volume's name: vm-100-disk-0, 100/vm-100-....
var volumePattern = regexp.MustCompile(`(?:^|[:/])(?:vm|subvol)-(\d+)-[^/]*$`)

// foreignVolumes are attached disks that carry another VMID, as those of the
// Proxmox CSI driver do. Proxmox leaves them alone when it destroys the VM.
func foreignVolumes(id Identity, cfg proxmox.VMConfig) []string {
	var out []string
	for _, drive := range cfg.Drives() {
		if found := volumePattern.FindStringSubmatch(drive.VolumeID); found != nil && found[1] != strconv.Itoa(id.VMID) {
			out = append(out, drive.VolumeID)
		}
	}
	return out
}

// blockedBy turns "nobody answers" and "somebody holds the lock" into a reason
// to wait; other errors stay what they are.
func blockedBy(err error, message string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, proxmox.ErrHostUnreachable), errors.Is(err, proxmox.ErrUnreachable), errors.Is(err, proxmox.ErrNoQuorum):
		return &BlockedError{Reason: BlockedHostUnreachable, Message: message + ": " + err.Error()}
	case errors.Is(err, proxmox.ErrLocked):
		return &BlockedError{Reason: BlockedLocked, Message: err.Error()}
	}
	return err
}
