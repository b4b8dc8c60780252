// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
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
	BlockedNotVisible      = "VMNotVisible"
	BlockedNewerVersion    = "CreatedByNewerController"
	BlockedNotAdopted      = "VMNotAdopted"
)

// Delete removes a Claim's VM and all that was made for it. It is idempotent and
// answers within OperationTimeout: gone means proven gone, otherwise the removal is
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
	ctx, cancel := context.WithTimeout(ctx, p.Settings.OperationTimeout)
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
	r.Inventory.Ledger().Release(string(r.claim.UID))
	r.memory.forget(string(r.claim.UID))
	return true, nil
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

// volumePattern finds the VMID in a volume's name: vm-100-disk-0, 100/vm-100-....
var volumePattern = regexp.MustCompile(`(?:^|[:/])(?:vm|subvol)-(\d+)-[^/]*$`)

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
