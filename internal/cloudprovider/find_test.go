// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func providerIDs(w *testenv.Env) []string {
	w.T.Helper()
	claims, err := provider(w).List(w.T.Context())
	w.Expect(err).NotTo(HaveOccurred())
	out := []string{}
	for _, claim := range claims {
		out = append(out, claim.Status.ProviderID)
	}
	return out
}

func TestList(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2))
	class := w.Class()
	running, launching := w.Launched("running", class), w.Planned("launching", class)
	w.Claim("unplanned", class)
	// A Node without a VM is not listed.
	w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named("ghost")}, Spec: corev1.NodeSpec{ProviderID: "proxmox://region-1/20999"}})
	w.Expect(providerIDs(w)).To(ConsistOf(running.Status.ProviderID, launching.Status.ProviderID))

	listed, err := provider(w).List(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	for _, claim := range listed {
		if claim.Status.ProviderID == running.Status.ProviderID {
			w.Expect(claim.UID).To(Equal(running.UID))
			w.Expect(claim.Name).To(Equal(running.Name))
			w.Expect(claim.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, w.Intent(running).Host))
		}
	}

	// During an outage all VMs are listed: core would delete missing ones.
	w.Disconnect()
	w.Eventually(func() error { return w.Inventory.View().Failures[testenv.Region] }).Should(HaveOccurred())
	w.Expect(providerIDs(w)).To(ConsistOf(running.Status.ProviderID, launching.Status.ProviderID))
}

func TestListNotPolled(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NeverPolled(), testenv.OtherHosts(1))
	w.Expect(w.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed())
	_, err := provider(w).List(t.Context())
	w.Expect(err).To(MatchError(instance.ErrNotPolled))
	w.Expect(err.Error()).To(ContainSubstring(testenv.OtherRegion), "the region is named")
}

// Core deletes the claims that are missing in the list. If most VMs disappear at the same
// time, their common cause is not fixed by replacing them.
func TestListMassDeletion(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class, cp := w.Class(), provider(w, func(d *cloudprovider.Deps) { d.ReplacementMaxFraction = 0.5 })
	var claims []*karpv1.NodeClaim
	for i := range 5 {
		claim := w.Launched(fmt.Sprintf("c%d", i), class)
		w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchCompleted: time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)})
		claims = append(claims, claim)
	}
	for _, claim := range claims[1:] {
		w.DestroyByHand("pve1", w.Intent(claim).VMID)
	}
	w.Refresh()
	listed, err := cp.List(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(listed).To(HaveLen(5), "four of five VMs are missing")
	w.Expect(w.Kube.Delete(t.Context(), claims[4])).To(Succeed())
	listed, err = cp.List(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(listed).To(HaveLen(1), "three are below the threshold")
}

func TestGetNotFound(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	cp := provider(w)
	for _, foreign := range []string{"", "aws:///eu-west-1a/i-0123", "proxmox://region-1/notanumber", "proxmox://region-1/20777"} {
		_, err := cp.Get(t.Context(), foreign)
		w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "%q: %v", foreign, err)
	}
	_, err := cp.Get(t.Context(), "proxmox://region-1/101")
	w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "a foreign guest: %v", err)
	_, err = cp.Get(t.Context(), "proxmox://region-that-left/20001")
	w.Expect(err).To(HaveOccurred())
	w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeFalse(), "a region that is not in the config: %v", err)

	claim := w.Launched("a", w.Class())
	got, err := cp.Get(t.Context(), claim.Status.ProviderID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(got.UID).To(Equal(claim.UID))

	reconnect := w.Disconnect()
	got, err = cp.Get(t.Context(), claim.Status.ProviderID)
	w.Expect(err).NotTo(HaveOccurred(), "an outage")
	w.Expect(got.UID).To(Equal(claim.UID))
	reconnect()

	w.DestroyByHand("pve1", w.Intent(claim).VMID)
	_, err = cp.Get(t.Context(), claim.Status.ProviderID)
	w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "%v", err)
}

// deleteVM calls Delete like core until the VM is deleted.
func deleteVM(ctx context.Context, w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	cp := provider(w)
	var err error
	w.Eventually(func() bool {
		err = cp.Delete(ctx, claim)
		return corecloudprovider.IsNodeClaimNotFoundError(err)
	}).WithPolling(50*time.Millisecond).Should(BeTrue(), func() string { return fmt.Sprintf("deleting: %v", err) })
}

func TestDelete(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	claim := w.Launched("a", w.Class())
	w.Expect(w.Tokens()).NotTo(BeEmpty())
	deleteVM(t.Context(), w, claim)
	w.Expect(w.VMs()).To(BeEmpty())
	w.Expect(w.BootDrives("pve1")).To(BeEmpty())
	w.Expect(w.Tokens()).To(BeEmpty())
	deleteVM(t.Context(), w, claim)
}

func TestDeleteForeignVM(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Claim("a", w.Class())
	for _, foreign := range []string{"aws:///eu-west-1a/i-0123", "proxmox://region-1/101"} {
		claim.Status.ProviderID = foreign
		w.Expect(corecloudprovider.IsNodeClaimNotFoundError(provider(w).Delete(t.Context(), claim))).To(BeTrue(), foreign)
	}
	state, err := w.Client.VMStatus(t.Context(), "pve1", 101)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(state.Running).To(BeTrue(), "the foreign guest still runs")
}

func TestDeleteProtectedVM(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	claim := w.Launched("a", w.Class())
	protect := func(value string) {
		w.Expect(w.Client.UpdateVM(t.Context(), "pve1", w.Intent(claim).VMID,
			proxmox.ConfigChange{Set: map[string]string{"protection": value}})).To(Succeed())
	}
	protect("1")
	w.Expect(provider(w).Delete(t.Context(), claim)).To(Succeed(), "in progress")
	w.Expect(w.Events.Messages(v1alpha1.EventVMProtected)).To(ConsistOf(ContainSubstring("--protection 0")))
	w.Expect(w.VMs()).To(HaveLen(1))
	protect("0")
	deleteVM(t.Context(), w, claim)
}

func TestReboot(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	cp := provider(w)
	claim := w.Launched("a", w.Class())
	resets := func() int { return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset") }
	w.Expect(cp.Reboot(t.Context(), claim, "op-1")).To(Succeed())
	w.Expect(cp.Reboot(t.Context(), testenv.Reload(w, claim), "op-1")).To(Succeed())
	w.Expect(resets()).To(Equal(1))
	w.Expect(cp.Reboot(t.Context(), claim, "op-2")).To(Succeed())
	w.Expect(resets()).To(Equal(2))
	w.DestroyByHand("pve1", w.Intent(claim).VMID)
	err := cp.Reboot(t.Context(), claim, "op-3")
	w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "%v", err)
}
