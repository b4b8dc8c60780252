// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"fmt"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// The number of requests does not depend on the number of Hosts, and all storages are
// listed in all regions.
func TestStorageSweeps(t *testing.T) {
	t.Parallel()
	keys := func() (out []inventory.StorageKey) {
		for i := range 10 {
			out = append(out, inventory.StorageKey{Host: fmt.Sprintf("pve%d", i), Storage: "local"})
		}
		return out
	}
	var sweeps storageSweeps
	for _, region := range []string{"east", "west"} {
		if all := sweeps.next(region, keys(), false); len(all) != 10 {
			t.Errorf("first sweep of %s: %d storages, want all", region, len(all))
		}
	}
	seen := map[inventory.StorageKey]int{}
	for range 20 {
		sweeps.next("west", keys(), true)
		for _, key := range sweeps.next("east", keys(), true) {
			seen[key]++
		}
		if got := sweeps.next("east", keys(), false); len(got) != 0 {
			t.Errorf("sweep without budget: %v", got)
		}
	}
	for _, key := range keys() {
		if seen[key] != 2 {
			t.Errorf("%s was listed %d times in 20 sweeps, want 2", key.Host, seen[key])
		}
	}
}
