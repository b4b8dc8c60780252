// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootstrapcleanup_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/bootstrapcleanup"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// initialized sets the condition that core sets when the Node is initialized.
func initialized(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeInitialized)
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
}

func TestCleanup(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	c := bootstrapcleanup.NewController(w.Instances.Deleter, w.Events)
	w.StartManager(func(client.Client) testenv.Registrar { return c })
	claim := w.Launched("a", w.Class())
	w.Consistently(w.Tokens).WithTimeout(300*time.Millisecond).Should(HaveLen(1), "the guest still needs it")
	w.Expect(w.BootDrives("pve1")).To(HaveLen(1))

	initialized(w, claim)
	cached := claim.DeepCopy()
	w.Eventually(func() string {
		return testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationBootDataStatus]
	}).Should(Equal(v1alpha1.BootDataInitialized))
	w.Expect(w.BootDrives("pve1")).To(BeEmpty())
	w.Expect(w.Tokens()).To(BeEmpty())
	cfg, err := w.Client.VMConfig(t.Context(), "pve1", w.Intent(claim).VMID)
	w.Expect(err).NotTo(HaveOccurred())
	for _, drive := range cfg.Drives().All() {
		w.Expect(drive.VolumeID).NotTo(ContainSubstring(".iso"), "the VM would not start without the file")
	}
	w.Expect(w.Running(claim)).To(BeTrue())

	w.Sim.ResetRequests()
	for controller, claim := range map[*bootstrapcleanup.Controller]*karpv1.NodeClaim{
		bootstrapcleanup.NewController(w.Instances.Deleter, w.Events): claim,
		c: cached, // it knows what it did
	} {
		_, err = controller.Reconcile(t.Context(), claim)
		w.Expect(err).NotTo(HaveOccurred())
	}
	w.Expect(w.Sim.CountRequests("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}")).To(BeZero(), "cleaned up once")
}

// heldStart is a client whose first start of a VM waits until it is released.
type heldStart struct {
	proxmox.Client
	requested, released chan struct{}
}

func (c heldStart) StartVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	close(c.requested)
	select {
	case <-c.released:
	case <-ctx.Done():
	}
	return c.Client.StartVM(ctx, host, vmid)
}

func TestCleanupBusyClaim(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	claim := w.Launched("a", w.Class())
	initialized(w, claim)
	w.PowerOff(claim)
	held := heldStart{Client: w.Client, requested: make(chan struct{}), released: make(chan struct{})}
	w.Clients = map[string]proxmox.Client{testenv.Region: held}
	w.Restart(true)
	started := make(chan error, 1)
	go func() { _, err := w.Instances.Power.PowerOn(t.Context(), claim); started <- err }()
	w.Eventually(held.requested).Should(BeClosed())
	c := bootstrapcleanup.NewController(w.Instances.Deleter, w.Events)
	result, err := c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	w.Expect(w.BootDrives("pve1")).To(HaveLen(1))

	close(held.released)
	w.Expect(<-started).To(Succeed())
	_, err = c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.BootDrives("pve1")).To(BeEmpty())
}

func TestCleanupUnreachableHost(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	claim := w.Launched("a", w.Class())
	initialized(w, claim)
	reconnect := w.Disconnect()
	c := bootstrapcleanup.NewController(w.Instances.Deleter, w.Events)
	result, err := c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred(), "the inventory reports it")
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	reconnect()
	_, err = c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.Tokens()).To(BeEmpty())
}

func TestCleanupRetry(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	claim := w.Launched("a", w.Class())
	initialized(w, claim)
	fault, err := w.Sim.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "unable to write config"})
	w.Expect(err).NotTo(HaveOccurred())
	c := bootstrapcleanup.NewController(w.Instances.Deleter, w.Events)
	_, err = c.Reconcile(t.Context(), claim)
	w.Expect(err).To(MatchError(ContainSubstring(claim.Name)))
	w.Expect(w.BootDrives("pve1")).To(HaveLen(1), "a drive that is still attached is not deleted")
	w.Sim.RemoveFault(fault)
	_, err = c.Reconcile(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.BootDrives("pve1")).To(BeEmpty())
}
