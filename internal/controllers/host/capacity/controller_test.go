// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package capacity_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/capacity"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// marks counts how often consolidation was woken.
type marks struct{ atomic.Int32 }

func (m *marks) MarkUnconsolidated() time.Time { m.Add(1); return time.Time{} }

func TestFreedForeignCapacityWakesConsolidation(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 500, Name: "database", Host: "pve1", Status: "running", Config: map[string]string{"cores": "4", "memory": "8192"}})
	}))
	m := &marks{}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = capacity.NewController(w.Inventory, m).Start(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped })

	promise := func() {
		_, err := w.Inventory.Reserve("a", func(inventory.View) (inventory.Reservation, error) {
			return inventory.Reservation{Region: testenv.Region, Host: "pve1", VMID: 20001, Amount: inventory.Amount{CPUs: 1, MemoryBytes: 1 << 30}}, nil
		})
		w.Expect(err).NotTo(HaveOccurred())
	}
	w.Eventually(func() int32 {
		promise()
		w.Inventory.Release("a")
		return m.Load()
	}).WithTimeout(time.Minute).Should(BeNumerically(">", 0), "the watch has begun")

	settled := m.Load()
	w.Expect(w.Sim.PowerOffGuest(500)).To(Succeed())
	w.Eventually(func() int32 {
		w.Refresh()
		return m.Load()
	}).WithTimeout(time.Minute).WithPolling(50*time.Millisecond).Should(BeNumerically(">", settled), "a guest of somebody else's is gone")
}
