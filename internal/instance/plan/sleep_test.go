// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// A parked claim that fits on a sleeping host is planned there, and the host is woken for its VM.
// A claim that fits nowhere wakes no host, also if the hosts that are awake are full.
func TestUnparkOnSleepingHost(t *testing.T) {
	t.Parallel()
	for name, fits := range map[string]bool{"fits": true, "fits_nowhere": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.Hosts(2))
			settings, err := inventory.ParseSettings([]byte(`{"*": {"pve2": {"powermanagement": "Enabled"}}}`))
			w.Expect(err).NotTo(HaveOccurred())
			p := w.StartProcess(testenv.NoPolling(), testenv.HostSettings(settings))
			for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
				p.Planned("pool-"+name, w.NodeClass, testenv.OnHost("pve1"))
			}
			waiting, _ := parked(w, p, claimOnHost(w, "pve2", "pool-waiting"))
			p.Inventory.SetSleeping(map[inventory.HostName]inventory.Sleep{
				{Region: testenv.Region, Host: "pve2"}: {State: inventory.Asleep, Known: p.Inventory.View().Snapshots[testenv.Region].KnownHost("pve2")},
			})
			w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
			w.Eventually(func() bool { p.Refresh(); return p.Inventory.View().Snapshots[testenv.Region].Hosts["pve2"].Online }).WithTimeout(time.Minute).Should(BeFalse())
			w.Expect(decide(w, p)).To(Equal(power.Decision{Host: "pve2", Action: power.Keep}), "it only waits")

			if !fits {
				w.NodeClass.Spec.MetadataOptions.Storage = "local-lvm" // which has no ISOs
				w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked))
				w.Expect(decide(w, p)).To(Equal(power.Decision{Host: "pve2", Action: power.Keep}))
				return
			}
			w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrHostAsleep))
			w.Expect(w.Intent(w.Stored(waiting))).To(And(HaveField("Host", "pve2"), HaveField("Parked", false)))
			w.Expect(decide(w, p)).To(And(HaveField("Action", power.Wake), HaveField("Reasons", ConsistOf(HaveField("Type", power.InUse)))))
		})
	}
}

// decide returns the decision about pve2.
func decide(w *testenv.Env, p *testenv.Process) power.Decision {
	w.T.Helper()
	decisions := power.Decide(power.NewRegion(power.Source{
		View: p.Inventory.View(), Region: testenv.Region, KubeCluster: w.KubeCluster, Now: time.Now(), IdleSince: func(string) time.Time { return time.Now() },
	}))
	w.Expect(decisions).To(HaveLen(1))
	return decisions[0]
}
