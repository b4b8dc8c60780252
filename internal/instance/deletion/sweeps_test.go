// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"fmt"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// A look costs the same on a hundred Hosts as on four, and none is forgotten, however
// many regions there are.
func TestStorageSweeps(t *testing.T) {
	t.Parallel()
	keys := func() (out []inventory.StorageKey) {
		for i := range 10 {
			out = append(out, inventory.StorageKey{Host: fmt.Sprintf("pve%d", i), Storage: "local"})
		}
		return out
	}
	var l storageSweeps
	for _, region := range []string{"east", "west"} {
		if all := l.next(region, keys(), false); len(all) != 10 {
			t.Errorf("the first look at %s sees %d storages, want all", region, len(all))
		}
	}
	seen := map[inventory.StorageKey]int{}
	for range 20 {
		l.next("west", keys(), true)
		for _, key := range l.next("east", keys(), true) {
			seen[key]++
		}
		if turn := l.next("east", keys(), false); len(turn) != 0 {
			t.Errorf("without a call to spare %v are looked at", turn)
		}
	}
	for _, key := range keys() {
		if seen[key] != 2 {
			t.Errorf("%s was seen %d times in twenty looks, want 2", key.Host, seen[key])
		}
	}
}
