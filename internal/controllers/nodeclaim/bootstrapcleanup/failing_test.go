// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootstrapcleanup_test

import (
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/bootstrapcleanup"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// launched returns the claim of a VM with a boot drive on the storage local.
func launched(w *testenv.Env) *karpv1.NodeClaim { return w.Launched("a", w.Class()) }

// launchedAsRoot returns the claim of a VM with Ignition by firmware, which needs a login of root
// that the Process of the Env does not have.
func launchedAsRoot(w *testenv.Env) *karpv1.NodeClaim {
	w.T.Helper()
	secret := &corev1.Secret{}
	w.Expect(w.Kube.Get(w.T.Context(), client.ObjectKey{Namespace: w.Name, Name: "templates"}, secret)).To(Succeed())
	secret.Data["user-data"] = []byte(`{"ignition": {"version": "3.4.0"}}`)
	w.Expect(w.Kube.Update(w.T.Context(), secret)).To(Succeed())
	class := w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware })
	return w.StartProcess(testenv.AsRoot()).Launched("a", class)
}

func TestCleanupFailing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		launch func(*testenv.Env) *karpv1.NodeClaim
		change func(*testenv.Env, *karpv1.NodeClaim) error
		want   string
	}{
		"mark_lost": {launched, func(w *testenv.Env, claim *karpv1.NodeClaim) error {
			return w.Client.UpdateVM(w.T.Context(), "pve1", w.Intent(claim).VMID, proxmox.ConfigChange{Set: map[string]string{"description": "mine"}})
		}, "does not belong to this NodeClaim: its notes have no ownership mark"},
		"storage_inactive": {launched, func(w *testenv.Env, _ *karpv1.NodeClaim) error {
			return w.Sim.SetStorageActive("pve1", "local", false)
		}, "deleting volume local:iso/"},
		"privilege_revoked": {launched, func(w *testenv.Env, _ *karpv1.NodeClaim) error {
			role := pvesim.DefaultScenario(1).Roles[0]
			role.Privileges = slices.DeleteFunc(role.Privileges, func(p string) bool { return p == "Datastore.Allocate" })
			return w.Sim.SetRole(role)
		}, "forbidden: privilege Datastore.Allocate is missing on /storage/local"},
		"root_login_removed": {launchedAsRoot, func(*testenv.Env, *karpv1.NodeClaim) error { return nil }, "the cloud config has no login of root"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t)
			claim := c.launch(w)
			initialized(w, claim)
			w.Expect(c.change(w, claim)).To(Succeed())
			recorder := record.NewFakeRecorder(10)
			controller := bootstrapcleanup.NewController(w.Instances.Deleter, events.NewRecorder(recorder))
			for range 2 {
				_, err := controller.Reconcile(t.Context(), claim)
				w.Expect(err).To(HaveOccurred(), "it is retried")
			}
			w.Expect(recorder.Events).To(HaveLen(1), "one event for all retries")
			w.Expect(<-recorder.Events).To(And(
				HavePrefix("Warning "+v1alpha1.EventBootDriveNotDeleted+" boot drive local:iso/karpenter-"), ContainSubstring(string(claim.UID)), ContainSubstring(c.want)))
		})
	}
}

// A failure that ends without a change by a user causes no event.
func TestCleanupTransientFailure(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	claim := launched(w)
	initialized(w, claim)
	w.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "VM is locked (backup)", Count: 1})
	controller := bootstrapcleanup.NewController(w.Instances.Deleter, w.Events)
	_, err := controller.Reconcile(t.Context(), claim)
	w.Expect(err).To(MatchError(proxmox.ErrLocked))
	w.Expect(w.Events.Messages(v1alpha1.EventBootDriveNotDeleted)).To(BeEmpty())
	_, err = controller.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.BootDrives("pve1")).To(BeEmpty())
}
