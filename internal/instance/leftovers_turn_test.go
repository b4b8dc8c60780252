// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// A look costs the same on a hundred Hosts as on four, and none is forgotten.
func TestStoragesTakeTurns(t *testing.T) {
	t.Parallel()
	keys := func() []inventory.StorageKey {
		var out []inventory.StorageKey
		for i := range 10 {
			out = append(out, inventory.StorageKey{Host: fmt.Sprintf("pve%d", (i*7)%10), Storage: "local"})
		}
		return out
	}
	if all := inTurn(keys(), 0); len(all) != 10 {
		t.Errorf("the first look sees %d storages, want all", len(all))
	}
	seen := map[inventory.StorageKey]int{}
	for look := range int64(5) {
		turn := inTurn(keys(), look+1)
		if len(turn) != storagesPerLook {
			t.Errorf("look %d sees %d storages, want %d", look+1, len(turn), storagesPerLook)
		}
		for _, key := range turn {
			seen[key]++
		}
	}
	for _, key := range keys() {
		if seen[key] != 2 {
			t.Errorf("%s was seen %d times in five looks, want 2", key.Host, seen[key])
		}
	}
}
