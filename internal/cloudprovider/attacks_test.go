// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// foreignVM is another user's guest.
const foreignVM = 101

// forged is a plan that clones another user's guest.
func forged(claim *karpv1.NodeClaim, changes ...func(*instance.Intent)) map[string]string {
	in := instance.Intent{
		ClaimUID: claim.UID, Region: testenv.Region, Host: "pve1", VMID: 20777, TemplateHost: "pve1", TemplateID: foreignVM, FullClone: true,
		InstanceType: testenv.InstanceType, CapacityType: karpv1.CapacityTypeOnDemand, Cores: 1, MemoryMiB: 512, Storage: "local-lvm",
	}
	for _, change := range changes {
		change(&in)
	}
	return map[string]string{v1alpha1.AnnotationLaunchIntent: in.Encode(), v1alpha1.AnnotationLaunchedBy: v1alpha1.LaunchedByVersion}
}

// attack runs a test with a class, and checks that the guests of others are as before.
func attack(t *testing.T, name string, test func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass)) {
	t.Helper()
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
		foreign := instance.Intent{Host: "pve1", VMID: foreignVM}
		before := w.VMConfig(foreign)
		test(w, w.Class())
		w.Expect(w.VMConfig(foreign)).To(Equal(before))
	})
}

// Annotations that a user gives to NodePools, which core copies, or to NodeClaims decide nothing.
func TestForgedAnnotations(t *testing.T) {
	t.Parallel()
	attack(t, "before_create", func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		claim := w.Claim("a", class)
		w.Annotate(claim, forged(claim))
		w.Store(claim, create(w, claim))
		in := w.Intent(claim)
		w.Expect(in.VMID).NotTo(Equal(20777))
		w.Expect(in.TemplateID).NotTo(Equal(foreignVM))
		w.MustLaunch(claim, class)
		w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", in.VMID)))
	})
	attack(t, "without_create", func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		claim := w.Claim("a", class)
		w.Annotate(claim, forged(claim))
		w.Expect(w.Launch(w.Stored(claim), class)).To(Succeed())
		w.Expect(w.VMs()).To(BeEmpty())
		w.Expect(w.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
	})
	attack(t, "after_create", func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		claim := w.Created("a", class)
		in := w.Intent(claim)
		w.Annotate(claim, forged(claim, func(f *instance.Intent) { f.VMID = in.VMID }))
		w.MustLaunch(claim, class)
		w.Expect(w.VMConfig(in).Compute().MemoryMiB()).To(Equal(in.MemoryMiB), "the plan in memory counts")
	})
	for name, c := range map[string]struct {
		forge func(*instance.Intent)
		want  string
	}{
		"other_vm":          {func(in *instance.Intent) { in.VMID = 20777 }, "it is the plan of VM proxmox://region-1/20777"},
		"other_claim":       {func(in *instance.Intent) { in.ClaimUID = "another" }, `it is the plan of the NodeClaim with the UID "another"`},
		"not_selected_host": {func(in *instance.Intent) { in.Host = "pve2" }, "was planned on host pve2, and its label topology.kubernetes.io/zone is"},
	} {
		attack(t, "after_restart_"+name, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
			claim := w.Created("a", class, testenv.OnHost("pve1"))
			in := w.Intent(claim)
			c.forge(&in)
			w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchIntent: in.Encode()})
			w.Restart(true)
			w.Expect(w.Launch(w.Stored(claim), class)).To(And(testenv.HaveReason(v1alpha1.EventInvalidLaunchIntent), MatchError(ContainSubstring(c.want))))
			w.Expect(w.VMs()).To(BeEmpty())
		})
	}
}

// Whoever may write the status of NodeClaims chooses neither VMID nor Host.
func TestForgedStatus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		forge func(*karpv1.NodeClaim, *instance.Intent)
		want  string
	}{
		"vmid_out_of_range": {func(_ *karpv1.NodeClaim, in *instance.Intent) { in.VMID = foreignVM }, "VMID 101 of NodeClaim a is not one of the configured VMIDs"},
		"host_not_of_class": {func(claim *karpv1.NodeClaim, in *instance.Intent) {
			in.Host, claim.Labels[corev1.LabelTopologyZone] = "pve7", "pve7"
		}, "was planned on host pve7 of region region-1, which is not one of NodeClass"},
	} {
		attack(t, name, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
			claim := w.Created("a", class)
			in := w.Intent(claim)
			testenv.Modify(w, claim, func(claim *karpv1.NodeClaim) {
				c.forge(claim, &in)
				claim.Annotations[v1alpha1.AnnotationLaunchIntent] = in.Encode()
			})
			testenv.ModifyStatus(w, claim, func(claim *karpv1.NodeClaim) { claim.Status.ProviderID = in.ProviderID() })
			w.Restart(true)
			w.Expect(w.Launch(w.Stored(claim), class)).To(And(testenv.HaveReason(v1alpha1.EventInvalidLaunchIntent), MatchError(ContainSubstring(c.want))))
			w.Expect(w.VMs()).To(BeEmpty())
		})
	}
}

// A NodeClaim keeps the labels that it was created with, so its VM must have them.
func TestCreateWithLabels(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		labels map[string]string
		placed bool
	}{
		"zone":           {map[string]string{corev1.LabelTopologyZone: "pve2"}, true},
		"unknown_zone":   {map[string]string{corev1.LabelTopologyZone: "pve7"}, false},
		"unknown_region": {map[string]string{corev1.LabelTopologyRegion: "elsewhere"}, false},
		"unknown_type":   {map[string]string{corev1.LabelInstanceTypeStable: "t9.huge"}, false},
		"spot":           {map[string]string{karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot}, false},
		"custom":         {map[string]string{"example.com/zone": "pve7"}, true},
	} {
		attack(t, name, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
			claim := w.Claim("a", class, func(claim *karpv1.NodeClaim) { maps.Copy(claim.Labels, c.labels) })
			created, err := w.CloudProvider().Create(w.Context(), claim)
			if !c.placed {
				w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
				return
			}
			w.Expect(err).NotTo(HaveOccurred())
			for key, value := range c.labels {
				w.Expect(w.Store(claim, created).Labels).To(HaveKeyWithValue(key, value))
			}
			w.MustLaunch(claim, class)
			w.Expect(w.VMConfig(w.Intent(claim)).Name()).To(Equal("a"))
		})
	}
}

// The controller is killed after core's first patch. Nothing was sent, so the VMID may change.
func TestCreateAfterFirstPatch(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) { s.Hosts[0].Cores = 4 })).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		claim := w.Claim("a", class, testenv.OnHost("pve1"))
		created := create(w, claim)
		testenv.Modify(w, claim, func(c *karpv1.NodeClaim) {
			c.Labels, c.Annotations = created.Labels, created.Annotations
		})
		w.Restart(true)
		w.Expect(w.Launch(w.Stored(claim), class)).To(Succeed())
		w.Expect(w.VMs()).To(BeEmpty(), "there is no providerID")
		w.Expect(create(w, claim).Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, "pve1"))
		w.Restart(true)
		w.Created("b", class, testenv.OnHost("pve1"))
		_, err := w.CloudProvider().Create(w.Context(), claim)
		w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "the zone is full now: %v", err)
	})
}
