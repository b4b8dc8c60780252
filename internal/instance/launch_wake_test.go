// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

var pve2 = observed.HostName{Region: testenv.Region, Host: "pve2"}

// newSleep returns a record about pve2.
func newSleep(w *testenv.Env, state declared.SleepState) declared.Sleep {
	return declared.Sleep{State: state, Since: time.Now(), Known: w.Inventory.View().Snapshots[testenv.Region].KnownHost("pve2")}
}

func setSleep(w *testenv.Env, record declared.Sleep) {
	w.Inventory.SetSleeping(map[observed.HostName]declared.Sleep{pve2: record})
}

// sleeping runs a test with two Hosts. pve2 was shut down to save energy.
func sleeping(t *testing.T, test func(w *testenv.Env, record declared.Sleep), options ...testenv.Option) {
	t.Helper()
	testenv.With(append(options, testenv.Hosts(2))...).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		record := newSleep(w, declared.Asleep)
		setSleep(w, record)
		w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
		expectUp(w, false)
		test(w, record)
	})
}

// expectUp checks whether pve2 is up after a while.
func expectUp(w *testenv.Env, up bool) {
	w.T.Helper()
	w.Clock.Advance(2 * time.Minute)
	w.Refresh()
	w.Expect(w.Inventory.View().Snapshots[testenv.Region].Hosts["pve2"].IsUp()).To(Equal(up))
}

// expectAsleep checks that a launch waits for pve2, and sends no clone.
func expectAsleep(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	requests := w.RecordRequests(func() {
		w.Expect(w.Launch(testenv.Reload(w, claim), w.NodeClass)).To(And(MatchError(instance.ErrHostAsleep), MatchError(ContainSubstring("pve2"))))
	})
	w.Expect(names(requests)).NotTo(ContainElement("POST /nodes/{node}/qemu/{vmid}/clone"))
}

func TestLaunchSleepingHost(t *testing.T) {
	sleeping(t, func(w *testenv.Env, _ declared.Sleep) {
		claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
		for range 3 {
			expectAsleep(w, claim)
		}
		w.Expect(w.Instances.Launcher.Progress(claim)).To(And(HaveKey(instance.PhaseHostWaking), Not(HaveKey(instance.PhaseHostAwake))))

		w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
		expectUp(w, true)
		expectAsleep(w, claim) // until the record is removed
		w.Inventory.SetSleeping(nil)
		w.MustLaunch(claim, w.NodeClass)
		w.Expect(w.Instances.Launcher.Progress(claim)).To(And(HaveKey(instance.PhaseHostAwake), HaveKey(instance.PhaseStarted)))
		w.Expect(w.Running(claim)).To(BeTrue())
		w.DeleteAll(claim)
	})
}

// A new leader has read the records when its process started. Since then, the last leader may have
// shut the host down, or woken it.
func TestLaunchSleepingHostOldRecords(t *testing.T) {
	t.Parallel()
	settings, err := declared.ParseSettings([]byte(`{"*": {"pve2": {"powermanagement": "Enabled"}}}`))
	testenv.Must(t, err)
	for name, test := range map[string]struct {
		old, new declared.SleepState
		boots    bool
	}{
		"asleep":        {"", declared.Asleep, false},
		"boots":         {"", declared.Waking, true},
		"shutting_down": {"", declared.ShuttingDown, true},
		"woken_again":   {declared.WakeFailed, declared.Waking, false},
	} {
		t.Run(name, func(t *testing.T) {
			sleeping(t, func(w *testenv.Env, record declared.Sleep) {
				claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
				w.Process = w.StartProcess(testenv.NeverPolled())
				old := map[observed.HostName]declared.Sleep{}
				if test.old != "" {
					record.State = test.old
					old[pve2] = record
				}
				w.Inventory.SetSleepingOutdated(old)
				if test.boots {
					w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
				}
				expectUp(w, test.boots)
				expectAsleep(w, claim)
				record.State = test.new
				setSleep(w, record)
				expectAsleep(w, claim)
			}, testenv.HostSettings(settings))
		})
	}
}

// A launch that has begun is not affected by the record about its host, which is written before the
// controller reads again whether the host is in use. Otherwise its VM would not be deleted with it.
func TestLaunchBegunOnSleepingHost(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"same_process": false, "restarted": true} {
		testenv.With(testenv.Hosts(2)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
			w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/status/start", Count: 1, Status: 500, Message: "not now"})
			w.Expect(w.Launch(claim, w.NodeClass)).To(MatchError(ContainSubstring("not now")))
			record := newSleep(w, declared.ShuttingDown)
			if restart {
				w.Process = w.StartProcess()
			}
			setSleep(w, record)
			w.Expect(w.Launch(testenv.Reload(w, claim), w.NodeClass)).To(Succeed())
			w.Expect(w.Instances.Launcher.Progress(claim)).NotTo(HaveKey(instance.PhaseHostWaking))
			w.DeleteAll(claim)
		})
	}
}

// A claim whose host does not wake fails, and is deleted although the host is off.
func TestLaunchWakeFailed(t *testing.T) {
	sleeping(t, func(w *testenv.Env, record declared.Sleep) {
		claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
		expectAsleep(w, claim)
		record.State = declared.WakeFailed
		setSleep(w, record)
		w.Expect(w.Launch(testenv.Reload(w, claim), w.NodeClass)).To(And(
			testenv.HaveReason(v1alpha1.EventHostWakeFailed), MatchError(ContainSubstring("did not wake up within 5m0s"))))
		w.Delete(testenv.Reload(w, claim))
		w.Expect(w.Inventory.View().Reservations).To(BeEmpty())
	})
}

// The leader changed after a claim was planned on a sleeping host, before its launch began.
func TestDeletePlannedOnSleepingHost(t *testing.T) {
	sleeping(t, func(w *testenv.Env, record declared.Sleep) {
		claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
		w.Process = w.StartProcess(testenv.NeverPolled())
		w.Inventory.SetSleepingOutdated(map[observed.HostName]declared.Sleep{pve2: record})
		w.Refresh()
		w.Sim.ResetRequests()
		w.Expect(w.Instances.Deleter.Delete(w.Context(), claim)).To(BeFalse(), "the records are not read yet")
		setSleep(w, record)
		w.Expect(w.Instances.Deleter.Delete(w.Context(), claim)).To(BeTrue())
		w.Expect(w.Sim.CountRequests("", "/nodes/*/tasks")).To(BeZero(), "the host is not asked for a clone")
	})
}

// A record that is newer than the plan does not show that the launch has not begun.
func TestDeletePlannedBeforeSleep(t *testing.T) {
	sleeping(t, func(w *testenv.Env, record declared.Sleep) {
		claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
		w.Process = w.StartProcess(testenv.NeverPolled())
		record.Since = w.Intent(claim).Time.Add(time.Second)
		setSleep(w, record)
		w.Refresh()
		_, err := w.Instances.Deleter.Delete(w.Context(), claim)
		w.Expect(err).To(testenv.HaveReason(v1alpha1.EventHostUnreachable))
	})
}

// A launch waits for the host of its template too.
func TestLaunchSleepingTemplateHost(t *testing.T) {
	sleeping(t, func(w *testenv.Env, record declared.Sleep) {
		w.NodeClass.Status.SelectedZones = []string{"region-1/pve1/9001"}
		claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve1"))
		w.Expect(w.Intent(claim).TemplateHost).To(Equal("pve2"))
		expectAsleep(w, claim)
		w.Restart(true)
		setSleep(w, record)
		expectAsleep(w, claim)
	})
}
