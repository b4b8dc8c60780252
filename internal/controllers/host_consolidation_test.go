// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/consolidation"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// counter counts how often consolidation was triggered.
type counter int

func (c *counter) MarkUnconsolidated() time.Time { *c++; return time.Time{} }

func TestStartTriggersConsolidation(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
			s.Guests = append(s.Guests, pvesim.Guest{
				VMID: 500, Name: "database", Host: "pve1", Status: "running", Config: map[string]string{"cores": "4", "memory": "8192"},
			})
		}))
		var triggered counter
		testenv.Go(t, consolidation.NewController(w.Inventory, &triggered).Start)
		expect := func(times int, why string) {
			t.Helper()
			synctest.Wait()
			w.Expect(triggered).To(BeEquivalentTo(times), why)
		}
		expect(0, "nothing changed")
		_, err := w.Inventory.Ledger().Reserve("a", func(inventory.View) (inventory.Reservation, error) {
			return inventory.Reservation{Region: testenv.Region, Host: "pve1", VMID: 20001, Amount: inventory.Amount{CPUs: 1, MemoryBytes: 1 << 30}}, nil
		})
		w.Expect(err).NotTo(HaveOccurred())
		expect(0, "less is free")
		w.Inventory.Ledger().Release("a")
		expect(1, "a reservation was released")
		w.Expect(w.Sim.PowerOffGuest(500)).To(Succeed())
		time.Sleep(time.Minute)
		w.Refresh()
		expect(2, "a foreign guest was stopped")
	})
}
