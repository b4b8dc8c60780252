// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"fmt"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// The number of requests does not depend on the number of Hosts, and all storages are
// listed in all regions.
func TestNextStorages(t *testing.T) {
	t.Parallel()
	var keys []inventory.StorageKey
	for i := range 10 {
		keys = append(keys, inventory.StorageKey{Host: fmt.Sprintf("pve%d", i), Storage: "local"})
	}
	clock := testclock.NewFakeClock(time.Date(2026, 11, 15, 8, 0, 0, 0, time.UTC))
	d := New(instance.Deps{Clock: clock}, nil)
	list := func(region string, budget bool) []inventory.StorageKey {
		next := d.nextStorages(region, keys, budget)
		for _, key := range next {
			clock.Step(time.Second)
			_, _ = d.drives.Read(t.Context(), storageOf{region, key}, func(context.Context) (struct{}, error) { return struct{}{}, nil })
		}
		return next
	}
	for _, region := range []string{"east", "west"} {
		if all := list(region, false); len(all) != 10 {
			t.Errorf("first list of %s: %d storages, want all", region, len(all))
		}
	}
	seen := map[inventory.StorageKey]int{}
	for range 20 {
		list("west", true)
		for _, key := range list("east", true) {
			seen[key]++
		}
		if got := list("east", false); len(got) != 0 {
			t.Errorf("list without budget: %v", got)
		}
	}
	for _, key := range keys {
		if seen[key] != 2 {
			t.Errorf("%s was listed %d times in 20 lists, want 2", key.Host, seen[key])
		}
	}
}
