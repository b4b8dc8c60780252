// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// sleeping returns an Env whose only other Host was shut down to save energy, and the record
// about it.
func sleeping(t *testing.T, options ...testenv.Option) (*testenv.Env, inventory.Sleep) {
	t.Helper()
	w := testenv.NewFake(t, append(options, testenv.Hosts(2))...)
	w.Process = w.StartProcess()
	record := inventory.Sleep{State: inventory.Asleep, Since: time.Now(), Known: w.Inventory.View().Snapshots[testenv.Region].KnownHost("pve2")}
	setSleep(w, record)
	w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
	w.Eventually(func() bool { w.Refresh(); return w.Inventory.View().Snapshots[testenv.Region].Hosts["pve2"].Online }).WithTimeout(30 * time.Second).Should(BeFalse())
	return w, record
}

func setSleep(w *testenv.Env, record inventory.Sleep) {
	w.Inventory.SetSleeping(map[inventory.HostName]inventory.Sleep{{Region: testenv.Region, Host: "pve2"}: record})
}

func TestLaunchSleepingHost(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"same_process": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, record := sleeping(t)
			if restart {
				w.Process = w.StartProcess(testenv.NeverPolled())
				setSleep(w, record)
				w.Refresh()
			}
			claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
			w.Sim.ResetRequests()
			for range 3 {
				w.Expect(w.Launch(testenv.Reload(w, claim), w.NodeClass)).To(MatchError(instance.ErrHostAsleep))
			}
			w.Expect(w.Sim.CountRequests("POST", "/nodes/*/qemu/*/clone")).To(BeZero())
			progress := instance.ReadProgress(testenv.Reload(w, claim))
			w.Expect(progress.Phase).To(Equal(instance.PhaseHostWaking))

			w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
			w.Eventually(func() bool { w.Refresh(); return w.Inventory.View().Snapshots[testenv.Region].Hosts["pve2"].IsUp() }).WithTimeout(30 * time.Second).Should(BeTrue())
			w.Expect(w.Launch(testenv.Reload(w, claim), w.NodeClass)).To(MatchError(instance.ErrHostAsleep), "until the record is removed")
			w.Inventory.SetSleeping(nil)
			w.Eventually(func() error { return w.Launch(testenv.Reload(w, claim), w.NodeClass) }).WithTimeout(30 * time.Second).Should(Succeed())
			progress = instance.ReadProgress(testenv.Reload(w, claim))
			w.Expect(progress.HasReached(instance.PhaseHostAwake)).To(BeTrue())
			w.Expect(progress.Phase).To(Equal(instance.PhaseStarted))
			w.Expect(w.Running(claim)).To(BeTrue())
			w.Delete(testenv.Reload(w, claim))
			w.ExpectNoOrphans()
		})
	}
}

// A new leader has read the records when its process started. Since then, the last leader may have
// shut the host down, or woken it.
func TestLaunchSleepingHostOldRecords(t *testing.T) {
	t.Parallel()
	settings, err := inventory.ParseSettings([]byte(`{"*": {"pve2": {"powermanagement": "Enabled"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		old, new inventory.SleepState
		boots    bool
	}{
		"asleep":        {"", inventory.Asleep, false},
		"boots":         {"", inventory.Waking, true},
		"shutting_down": {"", inventory.ShuttingDown, true},
		"woken_again":   {inventory.WakeFailed, inventory.Waking, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, record := sleeping(t, testenv.HostSettings(settings))
			claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
			w.Process = w.StartProcess(testenv.NeverPolled())
			old := map[inventory.HostName]inventory.Sleep{}
			if test.old != "" {
				record.State = test.old
				old[inventory.HostName{Region: testenv.Region, Host: "pve2"}] = record
			}
			w.Inventory.SetSleepingOutdated(old)
			if test.boots {
				w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
			}
			w.Eventually(func() bool { w.Refresh(); return w.Inventory.View().Snapshots[testenv.Region].Hosts["pve2"].Online }).WithTimeout(30 * time.Second).Should(Equal(test.boots))
			w.Sim.ResetRequests()
			for range 2 {
				w.Expect(w.Launch(claim, w.NodeClass)).To(MatchError(instance.ErrHostAsleep))
				record.State = test.new
				setSleep(w, record)
			}
			w.Expect(w.Sim.CountRequests("POST", "/nodes/*/qemu/*/clone")).To(BeZero())
		})
	}
}

// A launch that has begun is not affected by the record about its host, which is written before the
// controller reads again whether the host is in use. Otherwise its VM would not be deleted with it.
func TestLaunchBegunOnSleepingHost(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"same_process": false, "restarted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t, testenv.Hosts(2))
			w.Process = w.StartProcess()
			claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
			w.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/{node}/qemu/{vmid}/status/start", Count: 1, Status: 500, Message: "not now"})
			w.Expect(w.Launch(claim, w.NodeClass)).To(MatchError(ContainSubstring("not now")))
			record := inventory.Sleep{State: inventory.ShuttingDown, Since: time.Now(), Known: w.Inventory.View().Snapshots[testenv.Region].KnownHost("pve2")}
			if restart {
				w.Process = w.StartProcess()
			}
			setSleep(w, record)
			w.Expect(w.Launch(testenv.Reload(w, claim), w.NodeClass)).To(Succeed())
			progress := instance.ReadProgress(testenv.Reload(w, claim))
			w.Expect(progress.HasReached(instance.PhaseHostWaking)).To(BeFalse())
			w.Delete(testenv.Reload(w, claim))
			w.ExpectNoOrphans()
		})
	}
}

// A claim whose host does not wake fails, and is deleted although the host is off.
func TestLaunchWakeFailed(t *testing.T) {
	t.Parallel()
	w, record := sleeping(t)
	claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
	w.Expect(w.Launch(claim, w.NodeClass)).To(MatchError(instance.ErrHostAsleep))
	record.State = inventory.WakeFailed
	setSleep(w, record)
	err := w.Launch(testenv.Reload(w, claim), w.NodeClass)
	failure := &instance.LaunchError{}
	w.Expect(err).To(BeAssignableToTypeOf(failure))
	w.Expect(err).To(HaveField("Reason", v1alpha1.EventHostWakeFailed))
	w.Expect(err).To(MatchError(ContainSubstring("did not wake up within 5m0s")))
	w.Delete(testenv.Reload(w, claim))
	w.Expect(w.Inventory.View().Reservations).To(BeEmpty())
}

// The deletion of a claim that waits for its host needs no request to the host, also after a
// restart.
func TestDeleteWaitingForHost(t *testing.T) {
	t.Parallel()
	w, record := sleeping(t)
	claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
	w.Expect(w.Launch(claim, w.NodeClass)).To(MatchError(instance.ErrHostAsleep))
	w.Process = w.StartProcess(testenv.NeverPolled())
	setSleep(w, record)
	w.Refresh()
	w.Delete(testenv.Reload(w, claim))
}

// The leader changed after a claim was planned on a sleeping host, before its launch began.
func TestDeletePlannedOnSleepingHost(t *testing.T) {
	t.Parallel()
	w, record := sleeping(t)
	claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
	w.Process = w.StartProcess(testenv.NeverPolled())
	w.Inventory.SetSleepingOutdated(map[inventory.HostName]inventory.Sleep{{Region: testenv.Region, Host: "pve2"}: record})
	w.Refresh()
	w.Sim.ResetRequests()
	deleted, err := w.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeFalse(), "the records are not read yet")
	setSleep(w, record)
	deleted, err = w.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeTrue())
	w.Expect(w.Sim.CountRequests("", "/nodes/*/tasks")).To(BeZero(), "the host is not asked for a clone")
}

// A record that is newer than the plan does not show that the launch has not begun.
func TestDeletePlannedBeforeSleep(t *testing.T) {
	t.Parallel()
	w, record := sleeping(t)
	claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve2"))
	w.Process = w.StartProcess(testenv.NeverPolled())
	record.Since = w.Intent(claim).Time.Add(time.Second)
	setSleep(w, record)
	w.Refresh()
	_, err := w.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).To(HaveField("Reason", v1alpha1.EventHostUnreachable))
}

// A launch waits for the host of its template too.
func TestLaunchSleepingTemplateHost(t *testing.T) {
	t.Parallel()
	w, _ := sleeping(t)
	claim := w.Planned("a", w.NodeClass, testenv.OnHost("pve1"))
	in := w.Intent(claim)
	in.TemplateHost = "pve2"
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchIntent: in.Encode()})
	err := w.Launch(testenv.Reload(w, claim), w.NodeClass)
	w.Expect(err).To(And(MatchError(instance.ErrHostAsleep), MatchError(ContainSubstring("pve2"))))
	w.Expect(w.Sim.CountRequests("POST", "/nodes/*/qemu/*/clone")).To(BeZero())
}
