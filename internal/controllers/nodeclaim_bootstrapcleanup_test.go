// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmupdate"
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

// Predicates get the object of the cache, which is read concurrently.
func TestCleanupNotInitialized(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling())
		claim := w.Launched("a", w.Class())
		cached := claim.DeepCopy()
		w.Expect(newVMUpdateController(w, w.Kube).Reconcile(t.Context(), cached)).To(BeZero())
		w.Expect(cached).To(Equal(claim))
		w.Expect(w.BootDrives("pve1")).To(HaveLen(1))
	})
}

// heldStart is a client whose first start of a VM waits until it is released.
type heldStart struct {
	proxmox.Client
	released chan struct{}
}

func (c heldStart) StartVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	select {
	case <-c.released:
	case <-ctx.Done():
	}
	return c.Client.StartVM(ctx, host, vmid)
}

func TestCleanupBusyClaim(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling())
		claim := initialized(w)
		w.PowerOff(claim)
		held := heldStart{Client: w.Client, released: make(chan struct{})}
		w.Clients = map[string]proxmox.Client{testenv.Region: held}
		w.Restart(true)
		started := make(chan error, 1)
		go func() { _, err := w.Instances.Power.PowerOn(t.Context(), claim); started <- err }()
		synctest.Wait()
		c := newVMUpdateController(w, w.Kube)
		w.Expect(c.Reconcile(t.Context(), claim)).To(Equal(reconcile.Result{RequeueAfter: time.Second / 2}))
		w.Expect(w.BootDrives("pve1")).To(HaveLen(1))

		close(held.released)
		w.Expect(<-started).To(Succeed())
		w.Expect(c.Reconcile(t.Context(), claim)).To(BeZero())
		expectCleanedUp(w)
	})
}

// A failure that ends without a change by a user causes no event.
func TestCleanupRetry(t *testing.T) {
	t.Parallel()
	locked := pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "VM is locked (backup)"}
	for name, test := range map[string]struct {
		fault  pvesim.Fault
		err    OmegaMatcher
		result reconcile.Result
	}{
		"unreachable": {pvesim.Fault{Status: 595, Message: "No route to host"}, BeNil(), reconcile.Result{RequeueAfter: 30 * time.Second}},
		"locked":      {locked, MatchError(proxmox.ErrLocked), reconcile.Result{}},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.NoPolling())
			claim, c := initialized(w), newVMUpdateController(w, w.Kube)
			w.AddFault(test.fault)
			result, err := c.Reconcile(t.Context(), claim)
			w.Expect(err).To(test.err)
			w.Expect(result).To(Equal(test.result))
			w.Expect(w.Events.Reasons(claim)).To(BeEmpty())
			w.Sim.ClearFaults()
			w.Refresh()
			w.Expect(c.Reconcile(t.Context(), claim)).To(BeZero())
			expectCleanedUp(w)
		})
	}
}

// launchedWithFirmware returns the claim of a VM with Ignition by firmware, which needs a login of
// root that the Process of the Env does not have.
func launchedWithFirmware(w *testenv.Env) *karpv1.NodeClaim {
	w.T.Helper()
	templates := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}}
	testenv.Modify(w, templates, func(s *corev1.Secret) { s.Data["user-data"] = []byte(`{"ignition": {"version": "3.4.0"}}`) })
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware })
	claim := w.StartProcess(testenv.AsRoot()).Launched("a", class)
	w.Refresh()
	w.SetTrue(claim, karpv1.ConditionTypeInitialized)
	return claim
}

func TestCleanupFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		launch func(*testenv.Env) *karpv1.NodeClaim
		change func(*testenv.Env, *karpv1.NodeClaim) error
		want   string
	}{
		"mark_lost": {initialized, func(w *testenv.Env, claim *karpv1.NodeClaim) error {
			return w.Client.UpdateVM(w.T.Context(), "pve1", w.Intent(claim).VMID, proxmox.ConfigChange{Set: map[string]string{"description": "mine"}})
		}, "does not belong to this NodeClaim: its notes have no ownership mark"},
		"detach_refused": {initialized, func(w *testenv.Env, _ *karpv1.NodeClaim) error {
			_, err := w.Sim.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "unable to write config"})
			return err
		}, "unable to write config"},
		"storage_inactive": {initialized, func(w *testenv.Env, _ *karpv1.NodeClaim) error {
			return w.Sim.SetStorageActive("pve1", "local", false)
		}, "deleting volume local:iso/"},
		"privilege_revoked": {initialized, func(w *testenv.Env, _ *karpv1.NodeClaim) error {
			role := pvesim.DefaultScenario(1).Roles[0]
			role.Privileges = slices.DeleteFunc(role.Privileges, func(p string) bool { return p == "Datastore.Allocate" })
			return w.Sim.SetRole(role)
		}, "forbidden: privilege Datastore.Allocate is missing on /storage/local"},
		"root_login_removed": {launchedWithFirmware, func(*testenv.Env, *karpv1.NodeClaim) error { return nil }, "the cloud config has no login of root"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.NoPolling())
			claim, c := test.launch(w), newVMUpdateController(w, w.Kube)
			w.Expect(test.change(w, claim)).To(Succeed())
			for range 2 {
				_, err := c.Reconcile(t.Context(), claim)
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
