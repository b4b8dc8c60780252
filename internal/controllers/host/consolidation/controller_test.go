// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package consolidation_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/consolidation"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// consolidationCounter counts how often consolidation was triggered.
type consolidationCounter struct{ atomic.Int32 }

func (m *consolidationCounter) MarkUnconsolidated() time.Time { m.Add(1); return time.Time{} }

func TestStartTriggersConsolidation(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 500, Name: "database", Host: "pve1", Status: "running", Config: map[string]string{"cores": "4", "memory": "8192"}})
	}))
	m := &consolidationCounter{}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = consolidation.NewController(w.Inventory, m).Start(ctx) }()
	t.Cleanup(func() { cancel(); <-stopped })

	reserve := func() {
		_, err := w.Inventory.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
			return inventory.Reservation{Region: testenv.Region, Host: "pve1", VMID: 20001, Amount: inventory.Amount{CPUs: 1, MemoryBytes: 1 << 30}}, nil
		})
		w.Expect(err).NotTo(HaveOccurred())
	}
	reserved := false
	w.Eventually(func() int32 {
		// One change per poll: the watch reads only the last of several changes.
		if reserved = !reserved; reserved {
			reserve()
		} else {
			w.Inventory.Ledger().Release("a")
		}
		return m.Load()
	}).WithTimeout(time.Minute).Should(BeNumerically(">", 0), "the watch has started")

	settled := m.Load()
	w.Expect(w.Sim.PowerOffGuest(500)).To(Succeed())
	w.Eventually(func() int32 {
		w.Refresh()
		return m.Load()
	}).WithTimeout(time.Minute).WithPolling(50*time.Millisecond).Should(BeNumerically(">", settled), "a foreign guest was stopped")
}
