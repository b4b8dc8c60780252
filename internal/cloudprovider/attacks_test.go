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

// forged are annotations that name what others have.
var forged = map[string]string{
	v1alpha1.AnnotationHolds: `{"addresses":["10.0.0.1"],"machine":"db-1","devices":["gpu"],"storage":"local"}`, v1alpha1.AnnotationLaunchedBy: v1alpha1.LaunchedByVersion,
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
		w.Annotate(claim, forged)
		w.Store(claim, create(w, claim))
		w.Expect(claim.Annotations[v1alpha1.AnnotationHolds]).NotTo(ContainSubstring("gpu"), "those of Create win")
		w.MustLaunch(claim, class)
		w.Expect(w.VMConfig(w.Intent(claim)).HostDevices().PCI()).To(BeEmpty())
	})
	attack(t, "without_create", func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
		claim := w.Claim("a", class)
		w.Annotate(claim, forged)
		w.Expect(w.Launch(w.Stored(claim), class)).To(Succeed())
		w.Expect(w.VMs()).To(BeEmpty())
		w.Expect(w.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
	})
	for name, restart := range map[string]bool{"after_create": false, "after_restart": true} {
		attack(t, name, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
			claim := w.Created("a", class)
			planned := w.Intent(claim)
			w.Annotate(claim, forged)
			if restart {
				w.Restart(true)
			}
			w.MustLaunch(claim, class)
			in := w.Intent(claim)
			w.Expect(in).To(And(HaveField("VMID", planned.VMID), HaveField("TemplateID", planned.TemplateID), HaveField("Storage", planned.Storage),
				HaveField("Machine", BeEmpty()), HaveField("Devices", BeEmpty()), HaveField("Cores", planned.Cores)))
			w.Expect(in.Network.Addresses()).To(Equal(planned.Network.Addresses()))
		})
	}
}

// A user who may write the status and labels of NodeClaims chooses neither VMID, Host, size nor template.
func TestForgedStatus(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		labels map[string]string
		status func(*karpv1.NodeClaimStatus)
		want   string
	}{
		"vmid_out_of_range": {nil, func(s *karpv1.NodeClaimStatus) { s.ProviderID = "proxmox://region-1/101" }, "VMID 101 of NodeClaim a is not one of the configured VMIDs"},
		"host_not_of_class": {map[string]string{corev1.LabelTopologyZone: "pve7"}, nil, "host pve7 of region region-1 in the labels of NodeClaim a is not one of NodeClass"},
		"larger_type":       {map[string]string{corev1.LabelInstanceTypeStable: "t1.4VCPU-12GB"}, nil, "NodeClaim a has the capacity of 2 CPUs, and its instance type t1.4VCPU-12GB has 4"},
		"unknown_type":      {map[string]string{corev1.LabelInstanceTypeStable: "t9.huge"}, nil, `instance type "t9.huge" of NodeClaim a is not in the catalog any more`},
		"image":             {nil, func(s *karpv1.NodeClaimStatus) { s.ImageID = "101-0" }, ""},
	} {
		attack(t, name, func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) {
			claim := w.Created("a", class)
			planned := w.Intent(claim)
			testenv.Modify(w, claim, func(claim *karpv1.NodeClaim) { maps.Copy(claim.Labels, c.labels) })
			testenv.ModifyStatus(w, claim, func(claim *karpv1.NodeClaim) {
				if c.status != nil {
					c.status(&claim.Status)
				}
			})
			w.Restart(true)
			if c.want == "" {
				w.MustLaunch(w.Stored(claim), class)
				w.Expect(w.Intent(claim).TemplateID).To(Equal(planned.TemplateID))
				return
			}
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
