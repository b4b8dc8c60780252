// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// checkOnline returns a BlockedError if the Snapshot shows the VM's Host as offline.
// Requests would fail as well, some of them after OperationTimeout and without a cause.
func (a *attempt) checkOnline(host string) error {
	snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]
	if _, member := snapshot.Hosts[host]; !member || snapshot.IsOnline(host) {
		return nil
	}
	return hostUnreachable("host %s is offline; VM %d will be deleted when it is back", host, a.id.VMID)
}

// refresh polls the Cluster. A Cluster that does not respond blocks the deletion.
func (a *attempt) refresh(ctx context.Context) error {
	err := a.deps.Inventory.Refresh(ctx, a.id.Region)
	if errors.Is(err, context.DeadlineExceeded) {
		return hostUnreachable("region %s does not respond; VM %d will be deleted when it does", a.id.Region, a.id.VMID)
	}
	return blocked(err, fmt.Sprintf("region %s is unreachable", a.id.Region))
}

func hostUnreachable(format string, args ...any) error {
	return &instance.BlockedError{Reason: v1alpha1.EventHostUnreachable, Message: fmt.Sprintf(format, args...)}
}

// isUnreachable reports whether a deletion is blocked because the VM cannot be reached. Requests to
// a Cluster that is unavailable wait for those that time out.
func (a *attempt) isUnreachable(cause *instance.BlockedError) bool {
	return cause.Reason == v1alpha1.EventHostUnreachable ||
		cause.Reason == v1alpha1.EventProxmoxBusy && a.deps.Inventory.View().Unavailable(a.id.Region) != nil
}

// deleteUnreachable handles a Claim whose VM cannot be reached. The Claim is finished if
// an administrator fenced its Host or removed it from its Cluster; otherwise it waits.
func (a *attempt) deleteUnreachable(ctx context.Context, cause *instance.BlockedError) (bool, error) {
	host := a.deps.LastHost(a.claim)
	if fenced, why := a.deps.IsFenced(a.claim); fenced {
		return a.abandon(ctx, "host %s is fenced (ConfigMap %s), so the NodeClaim is finished without its VM %d; the VM is deleted as an orphan when region %s shows the host online again",
			host, declared.FencingConfigMap, a.id.VMID, a.id.Region)
	} else if why != "" {
		return false, hostUnreachable("%s; host %s is fenced without effect: %s", cause.Message, host, why)
	}
	if a.isHostRemoved(host) {
		return a.abandon(ctx, "host %[1]s was removed from the Proxmox cluster of region %[2]s, so the NodeClaim is finished without its VM %[3]d; left are its disks on shared storages, which you find on another host with pvesm list STORAGE --vmid %[3]d and delete with pvesm free VOLUME, and its configuration, which keeps the VMID in use until you delete it: rm /etc/pve/nodes/%[1]s/qemu-server/%[3]d.conf",
			host, a.id.Region, a.id.VMID)
	}
	if host == "" {
		return false, cause
	}
	return false, hostUnreachable("%s; if host %s is powered off and stays off, end the wait with: %s",
		cause.Message, host, a.deps.FenceCommands(observed.HostName{Region: a.id.Region, Host: host}))
}

// deleteUnconfigured handles a Claim whose region is not in the cloud config.
func (a *attempt) deleteUnconfigured(ctx context.Context, cause *instance.BlockedError) (bool, error) {
	host := a.deps.LastHost(a.claim)
	if fenced, _ := a.deps.IsFenced(a.claim); fenced {
		return a.abandon(ctx, "region %[1]s is not in the cloud config and host %[2]s is fenced (ConfigMap %[3]s), so the NodeClaim is finished without its VM %[4]d; if the VM still exists on host %[2]s, delete it by hand: qm stop %[4]d && qm destroy %[4]d --purge",
			a.id.Region, host, declared.FencingConfigMap, a.id.VMID)
	}
	return false, cause
}

// isHostRemoved reports whether the VM's Host was removed permanently from its Cluster.
func (a *attempt) isHostRemoved(host string) bool {
	name := observed.HostName{Region: a.id.Region, Host: host}
	return a.deps.Inventory.View().IsRemoved(name, a.deps.Settings.HostRemovedAfter)
}

// abandon finishes the Claim without its VM.
func (a *attempt) abandon(ctx context.Context, format string, args ...any) (bool, error) {
	if _, err := a.releaseClaimState(ctx); err != nil {
		return false, err
	}
	a.abandoned.Store(string(a.claim.UID), true)
	log.FromContext(ctx).Info("finished NodeClaim without deleting its VM", "vmid", a.id.VMID, "region", a.id.Region, "host", a.deps.LastHost(a.claim))
	return true, &instance.AbandonedError{Message: fmt.Sprintf(format, args...)}
}

// HasAbandoned reports whether this process finished a Claim without its VM, so the VM
// is an orphan that an administrator knows of.
func (d *Deleter) HasAbandoned(claimUID string) bool {
	_, ok := d.abandoned.Load(claimUID)
	return ok
}
