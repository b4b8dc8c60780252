// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

func TestPowerSettings(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	settings, err := inventory.ParseSettings([]byte(`{"home": {
	  "*":    {"powermanagement": "Report", "idletime": "15m", "waketimeout": "8m", "minawake": 2, "wattsidle": 60, "wattsfull": 180,
	           "sleepwindow": {"schedule": "0 19 * * mon-fri", "duration": "11h"}},
	  "pve1": {"powermanagement": "None"},
	  "pve4": {"powermanagement": "Enabled"},
	  "pve2": {"sleepwindow": {"schedule": "0 0 30 2 *", "duration": "1h"}}
	}}`))
	g.Expect(err).NotTo(HaveOccurred())
	power := settings.For("home", "pve3").Power
	if power.Mode != inventory.PowerReport || power.IdleTime != 15*time.Minute || power.WakeTimeout != 8*time.Minute || power.MinAwake != 2 || power.WattsIdle != 60 || power.WattsFull != 180 {
		t.Errorf("pve3 has %+v", power)
	}
	for at, want := range map[string]bool{
		"2026-11-16T18:59:00Z": false, "2026-11-16T19:00:00Z": true, "2026-11-17T05:59:00Z": true, "2026-11-17T06:01:00Z": false,
		"2026-11-14T22:00:00Z":      false, // a Saturday
		"2026-11-16T19:30:00+02:00": false,
	} {
		moment, err := time.Parse(time.RFC3339, at)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(power.SleepWindow.Contains(moment)).To(Equal(want), "the window contains %s", at)
		g.Expect(settings.For("home", "pve2").Power.SleepWindow.Contains(moment)).To(BeFalse(), "a window that never begins contains %s", at)
		g.Expect(settings.For("other", "pve1").Power.SleepWindow.Contains(moment)).To(BeTrue(), "no window does not contain %s", at)
	}
	g.Expect(settings.For("home", "pve4").Power.Mode).To(Equal(inventory.PowerEnabled))
	g.Expect(settings.For("home", "pve1").Power.Mode).To(Equal(inventory.PowerNone))
	if power := settings.For("other", "pve1").Power; power.Mode != inventory.PowerNone || power.IdleTime != 30*time.Minute || power.WakeTimeout != 5*time.Minute || power.MinAwake != 1 {
		t.Errorf("the defaults are %+v", power)
	}
}
