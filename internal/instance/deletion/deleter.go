// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deletion deletes VMs. The Deleter verifies ownership, stops and destroys the
// VM, confirms that nothing of it is left, and deletes its boot drive, join token and
// reservation. A VM counts as deleted only when Proxmox confirmed it.
package deletion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Deleter deletes VMs and what belongs to them.
type Deleter struct {
	deps   instance.Deps
	tokens *bootdata.Tokens
	// drives is when the boot drives on a storage were listed.
	drives *due.Cache[storageOf, struct{}]
	// abandoned are the UIDs of Claims that were finished without their VM.
	abandoned sync.Map
	// orphans holds the unfinishedOrphan of orphans by the UID of the Claim.
	orphans sync.Map
	// deleted has the UIDs of Claims whose VM is confirmed deleted: core calls Delete again if its next
	// write of the Claim fails.
	deleted *cache.Expiring
	// clones caches the names of the disks that failed clones created, by UPID.
	clones *lru.Cache
}

// deletedRetention is longer than core takes for a write.
const deletedRetention = 10 * time.Minute

// New returns a Deleter.
func New(deps instance.Deps, tokens *bootdata.Tokens) *Deleter {
	listing := due.Policy{Retry: backoff.Exponential{Initial: time.Minute, Max: time.Hour}}
	return &Deleter{deps: deps, drives: due.New[storageOf, struct{}](deps.Clock, func(storageOf) due.Policy { return listing }), tokens: tokens, clones: lru.New(cachedClones), deleted: cache.NewExpiringWithClock(deps.Clock)}
}

// Delete deletes a Claim's VM and all that was created for it. It is idempotent and
// returns within OperationTimeout, or when a request that was sent before is answered:
// true if the VM is confirmed deleted, false if the deletion is in progress and Delete
// must be called again. A *instance.BlockedError explains what prevents the deletion.
// With an *instance.AbandonedError, Delete returns true: the Claim is finished without
// its VM. Delete ends a launch of the Claim in progress.
func (d *Deleter) Delete(ctx context.Context, claim *karpv1.NodeClaim) (deleted bool, err error) {
	target, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return true, nil // without a providerID of ours there is no VM
	}
	if _, known := d.deleted.Get(claim.UID); known {
		return true, nil
	}
	unlimited := ctx
	ctx, cancel := context.WithTimeout(ctx, d.deps.Settings.OperationTimeout)
	defer cancel()
	release, ok := d.deps.Guard.AcquireDelete(ctx, string(claim.UID))
	if !ok {
		return false, nil
	}
	defer release()

	a := &attempt{Deleter: d, client: d.deps.Clients[target.Region], claim: claim, id: instance.NewIdentity(d.deps.KubeCluster, target, claim)}
	if cause := d.deps.CheckRegion(claim); cause != nil {
		return a.deleteUnconfigured(unlimited, cause)
	}
	a.intent, _ = d.deps.IntentOf(claim)
	if deleted, err = a.run(ctx); deleted {
		d.deleted.Set(claim.UID, nil, deletedRetention)
	}
	if cause, ok := errors.AsType[*instance.BlockedError](err); ok && a.isUnreachable(cause) {
		return a.deleteUnreachable(unlimited, cause)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return deleted, err
}

// attempt is one attempt to delete a Claim's VM.
type attempt struct {
	*Deleter
	client proxmox.Client
	claim  *karpv1.NodeClaim
	id     instance.Identity
	// intent is what is known of the VM. The deletion searches for what is not.
	intent instance.Intent
}

// isNotLaunched reports whether nothing was created for the Claim on Proxmox: it is parked, or
// its launch still waits for its Host to wake up. unknown is true if the records that show it
// are not read yet.
func (a *attempt) isNotLaunched() (notLaunched, unknown bool) {
	view, progress := a.deps.Inventory.View(), a.deps.Launches.Progress(a.id.ClaimUID)
	switch {
	case a.deps.Launches.Get(a.id.ClaimUID).Started || a.deps.IsLaunched(a.claim) || a.intent.IsListed(view):
		return false, false // requests of the launch may have been sent
	case a.intent.Parked || progress.HasReached(instance.PhaseHostWaking):
		return true, false
	}
	for _, name := range []string{a.intent.Host, a.intent.TemplateHost} {
		host, _ := view.Host(a.intent.Region, name)
		// With a record that is older than the plan, the launch could not begin.
		sleeping, isSleeping := host.Condition(inventory.Sleeping)
		record, isUnknown := host.Condition(inventory.PowerUnknown)
		notLaunched = notLaunched || isSleeping && !isUnknown && sleeping.Since.Before(a.intent.Time)
		unknown = unknown || isUnknown && record.Message == ""
	}
	return notLaunched, unknown
}

func (a *attempt) run(ctx context.Context) (bool, error) {
	switch notLaunched, unknown := a.isNotLaunched(); {
	case unknown:
		return false, nil // the leader reads the records when it starts
	case notLaunched:
		return a.releaseClaimState(ctx)
	}
	result := vmAbsent
	host, listed, err := a.locate(ctx)
	if err != nil {
		return false, err
	}
	if listed {
		if result, err = a.deleteListed(ctx, host); err != nil {
			return false, err
		}
	}
	confirmed, err := a.confirm(ctx, result, host)
	if err != nil || !confirmed {
		return false, err
	}
	if result == vmAbsent {
		if err := a.deleteEarlierLeaks(ctx, host); err != nil {
			return false, err
		}
		if err := a.leaveHA(ctx); err != nil {
			return false, err
		}
	}
	if err := a.deleteBootDrive(ctx, host); err != nil {
		return false, err
	}
	return a.releaseClaimState(ctx)
}

// deleteListed deletes a VM that a list shows on a Host.
func (a *attempt) deleteListed(ctx context.Context, host string) (result, error) {
	if err := a.checkOnline(host); err != nil {
		return vmRemaining, err
	}
	if err := a.refuseUnadopted(ctx, host); err != nil {
		return vmRemaining, err
	}
	_, found, err := a.deleteVM(ctx, a.client, a.id, host, a.powerOffOptions(ctx))
	if err != nil || found != vmAbsent {
		// If the end of the destroy is not seen, disks that were left are searched there.
		a.deps.Launches.RecordHost(a.id.ClaimUID, host)
	}
	return found, err
}

// locate returns the Host of the VM: that of the last Snapshot, otherwise that of a
// refreshed one. The Host of the intent is not used: the VM may have been migrated.
func (a *attempt) locate(ctx context.Context) (host string, listed bool, err error) {
	if guest, ok := a.deps.Inventory.View().Guest(a.id.Region, a.id.VMID); ok {
		return guest.Host, true, nil
	}
	if err := a.refresh(ctx); err != nil {
		return "", false, err
	}
	guest, ok := a.deps.Inventory.View().Guest(a.id.Region, a.id.VMID)
	return guest.Host, ok, nil
}

// refuseUnadopted refuses to delete a VM that another controller created and that was not adopted. It
// does not count as deleted either: it would keep running without a Claim.
func (a *attempt) refuseUnadopted(ctx context.Context, host string) error {
	if !instance.LaunchedByOther(a.claim) {
		return nil
	}
	cfg, err := a.client.VMConfig(ctx, host, a.id.VMID)
	if err != nil {
		return blocked(instance.IgnoreNotFound(err), unreachable(host))
	}
	if cfg.IsTemplate() {
		return nil // it is kept
	}
	return a.deps.CheckAdoption(ctx, a.claim, a.id, host, cfg)
}

// deleteBootDrive deletes the boot drive unless the bootstrap cleanup did. It gets the Host that
// the VM was on, if any.
func (a *attempt) deleteBootDrive(ctx context.Context, vmHost string) error {
	if !a.intent.Known {
		a.deleteFoundBootDrives(ctx)
		return nil
	}
	if _, member := a.deps.Inventory.View().Host(a.id.Region, a.intent.Host); a.intent.ISOStorage == "" || !member {
		return nil
	}
	return a.deleteBootDriveVolume(ctx, vmHost)
}

// releaseClaimState deletes what is not on Proxmox: Node, join token, reservation, tracker entry.
func (a *attempt) releaseClaimState(ctx context.Context) (bool, error) {
	if err := a.deleteNode(ctx); err != nil {
		return false, fmt.Errorf("deleting the Node of the deleted VM: %w", err)
	}
	if !a.intent.Known || a.intent.ISOStorage != "" { // otherwise the cleanup revoked it
		if err := a.tokens.Revoke(ctx, a.claim.UID); err != nil {
			return false, fmt.Errorf("deleting the join token: %w", err)
		}
	}
	a.deps.Inventory.Ledger().Release(string(a.claim.UID))
	a.deps.Launches.Evict(string(a.claim.UID))
	return true, nil
}

// deleteNode deletes the Node of a VM that is gone. Core deletes only Nodes that it registered,
// and expects a cloud controller manager to delete others.
func (a *attempt) deleteNode(ctx context.Context) error {
	node := &corev1.Node{}
	err := a.deps.Kube.Get(ctx, client.ObjectKey{Name: cmp.Or(a.intent.Machine, a.claim.Name)}, node)
	if err == nil && strings.EqualFold(node.Status.NodeInfo.SystemUUID, a.id.ClaimUID) {
		err = a.deps.Kube.Delete(ctx, node, client.Preconditions{UID: &node.UID})
	}
	return client.IgnoreNotFound(err)
}

func unreachable(host string) string { return fmt.Sprintf("host %s is unreachable", host) }

// blocked turns an unreachable Host, a held lock and a wait for other requests into a
// BlockedError; other errors stay as they are.
func blocked(err error, message string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, proxmox.ErrHostUnreachable), errors.Is(err, proxmox.ErrUnreachable), errors.Is(err, proxmox.ErrNoQuorum):
		return &instance.BlockedError{Reason: v1alpha1.EventHostUnreachable, Message: message + ": " + err.Error()}
	case errors.Is(err, proxmox.ErrLocked):
		return &instance.BlockedError{Reason: v1alpha1.EventVMLocked, Message: err.Error()}
	case errors.Is(err, proxmox.ErrNoTime) && !errors.Is(err, context.Canceled): // the controller does not end
		return &instance.BlockedError{Reason: v1alpha1.EventProxmoxBusy, Message: "the deletion had to wait and is retried: " + err.Error()}
	}
	return err
}
