// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// NewFixed returns an Inventory of Snapshots by region. It sends no requests: Refresh does
// nothing, and it must not be started. Only the ledger changes it.
func NewFixed(snapshots map[string]*observed.Snapshot, options Options) (*Inventory, error) {
	i, err := New(nil, options)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for region := range snapshots {
		i.addCluster(nil, region)
	}
	maps.Copy(i.snapshots, snapshots)
	i.publish(true)
	return i, nil
}
