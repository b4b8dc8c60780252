// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"errors"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// checkOnline returns a BlockedError if the Snapshot shows the VM's Host as offline.
// Requests would fail as well, some of them after OperationTimeout and without a cause.
func (a *attempt) checkOnline(host string) error {
	snapshot := a.deps.Inventory.View().Snapshots[a.id.Region]
	if state, member := snapshot.Hosts[host]; !member || state.Online {
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
	return &instance.BlockedError{Reason: instance.BlockedHostUnreachable, Message: fmt.Sprintf(format, args...)}
}
