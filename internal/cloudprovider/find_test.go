// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"fmt"
	"strconv"
	"strings"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestList(t *testing.T) {
	t.Parallel()
	testenv.With(testenv.Hosts(2)).Subtest(t, "running_and_launching", func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		running, launching := w.Launched("running", class), w.Planned("launching", class)
		w.Claim("unplanned", class)
		// A Node without a VM is not listed.
		w.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named("ghost")}, Spec: corev1.NodeSpec{ProviderID: "proxmox://region-1/20999"}})
		all := ConsistOf(
			And(HaveField("Status.ProviderID", running.Status.ProviderID), HaveField("UID", running.UID), HaveField("Name", running.Name),
				HaveField("Labels", HaveKeyWithValue(corev1.LabelTopologyZone, w.Intent(running).Host))),
			HaveField("Status.ProviderID", launching.Status.ProviderID))
		w.Expect(w.CloudProvider().List(w.Context())).To(all)

		// During an outage all VMs are listed: core would delete missing ones.
		w.Disconnect()
		w.Eventually(func() error { return w.Inventory.View().Failures[testenv.Region] }).Should(HaveOccurred())
		w.Expect(w.CloudProvider().List(w.Context())).To(all)
	})
	testenv.With(testenv.NeverPolled(), testenv.OtherHosts(1)).Subtest(t, "not_polled", func(w *testenv.Env, _ *testenv.Process) {
		w.Expect(w.Inventory.Refresh(w.Context(), testenv.Region)).To(Succeed())
		_, err := w.CloudProvider().List(w.Context())
		w.Expect(err).To(And(MatchError(instance.ErrNotPolled), MatchError(ContainSubstring(testenv.OtherRegion))))
	})
	// Core deletes the claims that are missing in the list. If most VMs disappear at the same
	// time, their common cause is not fixed by replacing them.
	testenv.With(testenv.NoPolling()).Subtest(t, "mass_deletion", func(w *testenv.Env, _ *testenv.Process) {
		class, cp := w.Class(), w.CloudProvider(func(d *cloudprovider.Deps) { d.ReplacementMaxFraction = 0.5 })
		var claims []*karpv1.NodeClaim
		for i := range 5 {
			claims = append(claims, w.Launched(fmt.Sprintf("c%d", i), class))
		}
		w.Clock.Advance(time.Hour)
		for _, claim := range claims[1:] {
			w.DestroyByHand("pve1", w.Intent(claim).VMID)
		}
		w.Refresh()
		w.Expect(cp.List(w.Context())).To(HaveLen(5), "four of five VMs are missing")
		w.Expect(w.Kube.Delete(w.Context(), claims[4])).To(Succeed())
		w.Expect(cp.List(w.Context())).To(HaveLen(1), "three are below the threshold")
	})
}

func TestGet(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, _ *testenv.Process) {
		cp, class := w.CloudProvider(), w.Class()
		foreign := w.Claim("foreign", class)
		for _, foreign.Status.ProviderID = range []string{
			"", "aws:///eu-west-1a/i-0123", "proxmox://region-1/notanumber", "proxmox://region-1/20777", "proxmox://region-1/101",
		} {
			_, err := cp.Get(w.Context(), foreign.Status.ProviderID)
			w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "%q: %v", foreign.Status.ProviderID, err)
			w.Expect(corecloudprovider.IsNodeClaimNotFoundError(cp.Delete(w.Context(), foreign))).To(BeTrue(), foreign.Status.ProviderID)
		}
		w.Expect(w.Client.VMStatus(w.Context(), "pve1", 101)).To(HaveField("Running", true), "the foreign guest is not deleted")
		_, err := cp.Get(w.Context(), "proxmox://region-that-left/20001")
		w.Expect(err).To(HaveOccurred())
		w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeFalse(), "a region that is not in the config: %v", err)

		claim := w.Launched("a", class)
		expectFound := func(cp *cloudprovider.CloudProvider) {
			w.T.Helper()
			w.Expect(cp.Get(w.Context(), claim.Status.ProviderID)).To(HaveField("UID", claim.UID))
		}
		expectFound(cp)
		reconnect := w.Disconnect()
		expectFound(cp)
		running := w.Process
		w.Restart(false)
		expectFound(w.CloudProvider())
		w.Process = running
		reconnect()

		w.DestroyByHand("pve1", w.Intent(claim).VMID)
		_, err = cp.Get(w.Context(), claim.Status.ProviderID)
		w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "%v", err)
	})
}

// deleteVM calls Delete like core until the VM is deleted.
func deleteVM(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	w.Eventually(func() bool {
		return corecloudprovider.IsNodeClaimNotFoundError(w.CloudProvider().Delete(w.T.Context(), claim))
	}).WithPolling(time.Minute).Should(BeTrue())
}

func TestDelete(t *testing.T) {
	t.Parallel()
	testenv.With().Subtest(t, "online", func(w *testenv.Env, _ *testenv.Process) {
		w.ResetForeignGuests()
		claim := w.Launched("a", w.Class())
		w.Fence("pve1")
		w.Expect(w.Tokens()).NotTo(BeEmpty())
		deleteVM(w, claim)
		w.ExpectNoOrphans()
		w.Expect(w.Events.Messages(v1alpha1.EventVMAbandoned)).To(BeEmpty(), "the host is online, so its fence has no effect")
		deleteVM(w, claim)
	})
	// After a restart, the host of a VM is unknown until its region was polled, unless the region is gone.
	testenv.With(testenv.NoPolling()).Subtest(t, "fenced_after_restart", func(w *testenv.Env, _ *testenv.Process) {
		claim := w.Launched("a", w.Class())
		w.Disconnect()
		w.Restart(false)
		w.Fence("pve1")
		w.Expect(w.CloudProvider().Delete(w.Context(), claim)).To(Succeed(), "in progress")
		w.Expect(w.Events.Messages(v1alpha1.EventHostUnreachable)).To(ConsistOf(ContainSubstring("was not polled since the start")))
		w.Expect(w.Events.Messages(v1alpha1.EventVMAbandoned)).To(BeEmpty())
		delete(w.Clients, testenv.Region)
		w.Restart(false)
		w.Fence("pve1")
		deleteVM(w, claim)
		w.Expect(w.Events.Messages(v1alpha1.EventVMAbandoned)).NotTo(BeEmpty())
	})
}

// The claim of a VM that cannot be reached waits until an administrator gives it up, although the
// another Host is fenced.
func TestDeleteUnreachable(t *testing.T) {
	t.Parallel()
	hostDown := func(w *testenv.Env, in instance.Intent) {
		w.Expect(w.Sim.HostDown(in.Host, "noroute")).To(Succeed())
		w.Refresh()
	}
	for name, test := range map[string]struct {
		fail func(*testenv.Env, instance.Intent)
		// event is why the claim waits, and message is in it.
		event     string
		message   []string
		removed   bool
		abandoned []string
	}{
		"host_fenced": {hostDown, v1alpha1.EventHostUnreachable, []string{
			"kubectl proxmox fence region-1/HOST",
			"kubectl patch configmap karpenter-proxmox-fencing -n kube-system --type merge -p \"data: {region-1.HOST: 'time: $(date -u +%FT%TZ)'}\"",
		}, false, []string{"VM VMID", "fenced"}},
		"cluster_fenced": {func(w *testenv.Env, _ instance.Intent) {
			w.Disconnect()
			for range 2 {
				w.Expect(w.Inventory.RefreshAll(w.Context())).NotTo(Succeed())
			}
		}, v1alpha1.EventHostUnreachable, nil, false, []string{"VM VMID"}},
		"region_not_configured": {func(w *testenv.Env, _ instance.Intent) {
			delete(w.Clients, testenv.Region)
			w.Restart(true)
		}, v1alpha1.EventRegionNotConfigured, []string{
			testenv.Region, "VM VMID", "HOST", "kubectl proxmox fence region-1/HOST", "kubectl patch configmap",
		}, false, []string{"VM VMID"}},
		// Proxmox still lists the guests of a host that was removed with "pvecm delnode".
		"host_removed": {func(w *testenv.Env, in instance.Intent) {
			hostDown(w, in)
			w.Expect(w.Sim.RemoveHost(in.Host)).To(Succeed())
			w.Refresh()
		}, v1alpha1.EventHostUnreachable, nil, true, []string{
			"VM VMID", "/etc/pve/nodes/HOST/qemu-server/VMID.conf", "pvesm list STORAGE --vmid VMID",
		}},
	} {
		testenv.With(testenv.NoPolling(), testenv.Hosts(2), testenv.OtherHosts(1)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			claim := w.Launched("a", w.Class())
			in := w.Intent(claim)
			expectParts := func(event string, parts []string) {
				w.T.Helper()
				for _, part := range parts {
					part = strings.NewReplacer("HOST", in.Host, "VMID", strconv.Itoa(in.VMID)).Replace(part)
					w.Expect(w.Events.Messages(event)).To(HaveEach(ContainSubstring(part)))
				}
			}
			test.fail(w, in)
			w.Fence(testenv.OtherHost(in.Host))
			for range 2 {
				w.Expect(w.CloudProvider().Delete(w.Context(), claim)).To(Succeed(), "in progress")
				w.Clock.Advance(time.Hour) // the host may have been a member in the meantime
			}
			w.Expect(w.Events.Messages(test.event)).To(HaveLen(2))
			expectParts(test.event, test.message)
			if test.removed {
				for range 15 {
					w.Clock.Advance(time.Minute)
					w.Refresh()
				}
			} else {
				w.Fence(in.Host)
			}
			deleteVM(w, claim)
			w.Expect(w.Events.Messages(v1alpha1.EventVMAbandoned)).NotTo(BeEmpty())
			expectParts(v1alpha1.EventVMAbandoned, test.abandoned)
			w.ExpectNoTokens()
			w.Expect(w.Sim.Guests()).To(ContainElement(HaveField("VMID", in.VMID)), "it is not touched")
		})
	}
}
