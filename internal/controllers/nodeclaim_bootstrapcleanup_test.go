// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmupdate"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func newVMUpdateController(w *testenv.Env, kube client.Client) *vmupdate.Controller {
	return vmupdate.NewController(kube, w.Instances.Updater, w.Instances.Adopter, w.Instances.Deleter, w.Events)
}

// initialized returns a claim whose Node is initialized, and the boot drive of its VM exists.
func initialized(w *testenv.Env) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Launched("a", w.Class())
	w.SetTrue(claim, karpv1.ConditionTypeInitialized)
	return claim
}

func expectCleanedUp(w *testenv.Env) {
	w.T.Helper()
	w.Expect(w.BootDrives("pve1")).To(BeEmpty())
	w.Expect(w.Tokens()).To(BeEmpty())
}

func TestCleanup(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t)
	c := newVMUpdateController(w, w.Kube)
	w.StartManager(func(client.Client) testenv.Registrar { return c })
	claim := w.Launched("a", w.Class())
	w.Consistently(w.Tokens).WithTimeout(300*time.Millisecond).Should(HaveLen(1), "the guest still needs it")
	w.Expect(w.BootDrives("pve1")).To(HaveLen(1))

	w.SetTrue(claim, karpv1.ConditionTypeInitialized)
	w.Eventually(func() int { return len(w.BootDrives("pve1")) }).Should(BeZero())
	expectCleanedUp(w)
	for _, drive := range w.VMConfig(w.Intent(claim)).Drives().All() {
		w.Expect(drive.VolumeID).NotTo(ContainSubstring(".iso"), "the VM would not start without the file")
	}
	w.Expect(w.Running(claim)).To(BeTrue())
	w.Sim.ResetRequests()
	w.Expect(c.Reconcile(t.Context(), testenv.Reload(w, claim))).Error().NotTo(HaveOccurred())
	w.Restart(true)
	w.Expect(newVMUpdateController(w, w.Kube).Reconcile(t.Context(), claim)).Error().NotTo(HaveOccurred(), "the mark of the VM shows it")
	w.Expect(w.Sim.CountRequests("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}")).To(BeZero(), "cleaned up once")
}

func TestCleanupBusyClaim(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		claim := w.Launched("a", w.Class())
		cached, c := claim.DeepCopy(), newVMUpdateController(w, w.Kube)
		w.Expect(c.Reconcile(w.Context(), cached)).To(BeZero(), "it is not initialized")
		w.Expect(cached).To(Equal(claim), "objects of the cache are read concurrently")
		w.SetTrue(claim, karpv1.ConditionTypeInitialized)
		w.PowerOff(claim)
		w.AddFault(pvesim.Fault{Task: "qmstart", Delay: pvesim.Duration(10 * time.Second)})
		started := make(chan error, 1)
		go func() { _, err := w.Instances.Power.PowerOn(w.Context(), claim); started <- err }()
		synctest.Wait()
		w.Expect(c.Reconcile(w.Context(), claim)).To(Equal(reconcile.Result{RequeueAfter: watch.Soon}))
		w.Expect(w.BootDrives("pve1")).To(HaveLen(1))

		w.Expect(<-started).To(Succeed())
		w.Expect(c.Reconcile(w.Context(), claim)).To(BeZero())
		expectCleanedUp(w)
	})
}

const configPath = "/nodes/*/qemu/*/config"

// A failure that ends without a change by a user causes no event.
func TestCleanupRetry(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault pvesim.Fault
		err   OmegaMatcher
		retry time.Duration
	}{
		"unreachable": {pvesim.Fault{Status: 595, Message: "No route to host"}, BeNil(), watch.Again},
		"locked":      {pvesim.Fault{Method: "PUT", Path: configPath, Status: 500, Message: "VM is locked (backup)"}, MatchError(proxmox.ErrLocked), 0},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			claim, c := initialized(w), newVMUpdateController(w, w.Kube)
			w.AddFault(test.fault)
			result, err := c.Reconcile(w.Context(), claim)
			w.Expect(err).To(test.err)
			w.Expect(result.RequeueAfter).To(Equal(test.retry))
			w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
			w.Sim.ClearFaults()
			w.Refresh()
			w.Expect(c.Reconcile(w.Context(), claim)).To(BeZero())
			expectCleanedUp(w)
		})
	}
}

// launchedWithFirmware returns the claim of a VM with Ignition by firmware, which needs a login of
// root that the Process of the Env does not have.
func launchedWithFirmware(w *testenv.Env) *karpv1.NodeClaim {
	w.T.Helper()
	setSecret(w, testenv.TemplatesSecret, "user-data", `{"ignition": {"version": "3.4.0"}}`)
	claim := w.StartProcess(testenv.AsRoot()).Launched("a", w.Class(withFirmware))
	w.Refresh()
	w.SetTrue(claim, karpv1.ConditionTypeInitialized)
	return claim
}

func TestCleanupFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*testenv.Env, *karpv1.NodeClaim) error
		want   string
	}{
		"mark_lost": {func(w *testenv.Env, claim *karpv1.NodeClaim) error {
			return w.Client.UpdateVM(w.T.Context(), "pve1", w.Intent(claim).VMID, proxmox.ConfigChange{Set: map[string]string{"description": "mine"}})
		}, "does not belong to this NodeClaim: its notes have no ownership mark"},
		"detach_refused": {func(w *testenv.Env, _ *karpv1.NodeClaim) error {
			_, err := w.Sim.AddFault(pvesim.Fault{Method: "PUT", Path: configPath, Status: 500, Message: "unable to write config"})
			return err
		}, "unable to write config"},
		"storage_inactive": {func(w *testenv.Env, _ *karpv1.NodeClaim) error {
			return w.Sim.SetStorageActive("pve1", "local", false)
		}, "deleting volume local:iso/"},
		"privilege_revoked": {func(w *testenv.Env, _ *karpv1.NodeClaim) error {
			scenario := pvesim.DefaultScenario(1)
			withoutPrivilege("Karpenter Datastore.Allocate")(scenario)
			return w.Sim.SetRole(scenario.Roles[0])
		}, "forbidden: privilege Datastore.Allocate is missing on /storage/local"},
		"root_login_removed": {nil, "the cloud config has no login of root"},
	} {
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			launch := initialized
			if test.change == nil {
				launch = launchedWithFirmware
			}
			claim, c := launch(w), newVMUpdateController(w, w.Kube)
			if test.change != nil {
				w.Expect(test.change(w, claim)).To(Succeed())
			}
			for range 2 {
				_, err := c.Reconcile(w.Context(), claim)
				w.Expect(err).To(MatchError(ContainSubstring("NodeClaim "+claim.Name)), "it is retried")
			}
			w.Expect(w.Events.Reasons(claim)).To(HaveEach(v1alpha1.EventBootDriveNotDeleted))
			w.Expect(w.Events.Emitted(v1alpha1.EventBootDriveNotDeleted)).To(ConsistOf(And(
				HavePrefix("boot drive local:iso/karpenter-"), ContainSubstring(string(claim.UID)), ContainSubstring(test.want))), "one event for all retries")
			w.Expect(w.Sim.SetStorageActive("pve1", "local", true)).To(Succeed())
			w.Expect(w.BootDrives("pve1")).To(HaveLen(1), "a drive that is still attached is not deleted")
		})
	}
}
