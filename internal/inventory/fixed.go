// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"maps"
)

// NewFixed returns an Inventory of Snapshots by region. It sends no requests: Refresh does
// nothing, and it must not be started. Only the ledger changes it.
func NewFixed(snapshots map[string]*Snapshot, options Options) (*Inventory, error) {
	i, err := New(nil, options)
	if err != nil {
		return nil, err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	for region := range snapshots {
		i.addCluster(nil, region)
	}
	i.snapshots = maps.Clone(snapshots)
	i.publish(true)
	return i, nil
}
