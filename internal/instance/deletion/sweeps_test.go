// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	testclock "k8s.io/utils/clock/testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// The number of requests does not depend on the number of Hosts, and all storages are
// listed in all regions.
func TestNextStorages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	var keys []observed.StorageKey
	for i := range 10 {
		keys = append(keys, observed.StorageKey{Host: fmt.Sprintf("pve%d", i), Storage: "local"})
	}
	clock := testclock.NewFakeClock(time.Date(2026, 11, 15, 8, 0, 0, 0, time.UTC))
	d := New(instance.Deps{Clock: clock}, nil)
	list := func(region string, budget bool) []observed.StorageKey {
		next := d.nextStorages(region, keys, budget)
		for _, key := range next {
			clock.Step(time.Second)
			_, _ = d.drives.Read(t.Context(), storageOf{region, key}, func(context.Context) (struct{}, error) { return struct{}{}, nil })
		}
		return next
	}
	for _, region := range []string{"east", "west"} {
		g.Expect(list(region, false)).To(HaveLen(10), "first list of %s", region)
	}
	seen := map[observed.StorageKey]int{}
	for range 20 {
		list("west", true)
		for _, key := range list("east", true) {
			seen[key]++
		}
		g.Expect(list("east", false)).To(BeEmpty(), "without budget")
	}
	g.Expect(seen).To(And(HaveLen(10), HaveEach(2)), "how often each was listed")
}
