// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func drift(w *testenv.Env, cp *cloudprovider.CloudProvider, claim *karpv1.NodeClaim) string {
	w.T.Helper()
	reason, err := cp.IsDrifted(w.T.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	return string(reason)
}

// changeSpec changes a class.
func changeSpec(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, change func(*v1alpha1.ProxmoxNodeClassSpec)) {
	w.T.Helper()
	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { change(&c.Spec) })
}

func TestIsDrifted(t *testing.T) {
	t.Parallel()
	testenv.With(testenv.NoPolling()).Subtest(t, "NodeClass", func(w *testenv.Env, _ *testenv.Process) {
		cp, class := w.CloudProvider(), w.Class()
		claim := w.Created("a", class)
		w.Expect(drift(w, cp, claim)).To(BeEmpty())

		changeSpec(w, class, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Tags = []string{"another"} })
		w.Expect(drift(w, cp, claim)).To(BeEmpty(), "tags are written in place")

		changeSpec(w, class, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.BootDevice.Size = "60G" })
		w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftNodeClass))

		w.Annotate(claim, map[string]string{v1alpha1.AnnotationNodeClassHashVersion: "v0"})
		w.Expect(drift(w, cp, claim)).To(BeEmpty(), "hashes of two versions cannot be compared")

		w.Expect(w.Kube.Delete(w.Context(), class)).To(Succeed())
		w.Expect(drift(w, cp, claim)).To(BeEmpty(), "without a class there is no drift")
	})
	testenv.With(testenv.NoPolling()).Subtest(t, "machine", func(w *testenv.Env, _ *testenv.Process) {
		cp, class := w.CloudProvider(), w.Class(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Machines = []v1alpha1.Machine{{Name: "db-1"}} })
		claim := w.Created("a", class)
		changeSpec(w, class, func(s *v1alpha1.ProxmoxNodeClassSpec) { s.Machines[0].Name = "db-2" })
		w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftMachine))
		w.Expect(cp.DescribeDrift(w.Context(), claim, v1alpha1.DriftMachine)).To(ContainSubstring("has no machine db-1 any more"))
	})
	testenv.With(testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(otherTemplates)).Subtest(t, "image", func(w *testenv.Env, _ *testenv.Process) {
		cp, class := w.CloudProvider(), w.Class()
		claim := w.Created("a", class, testenv.OnHost("pve1"))
		replace := func(zones ...string) {
			testenv.ModifyStatus(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Status.SelectedZones = zones })
		}
		replace("region-1/pve1/9000", "region-1/pve2/9101")
		w.Expect(drift(w, cp, claim)).To(BeEmpty(), "a new template on another host does not concern it")
		testenv.ModifyStatus(w, claim, func(c *karpv1.NodeClaim) { c.Status.ImageID = "another" })
		w.Expect(drift(w, cp, claim)).To(BeEmpty(), "a claim that was parked has the image of that time in its status")
		replace("region-1/pve1/9100", "region-1/pve2/9101")
		w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftImage))
		replace("region-1/pve2/9101")
		w.Expect(drift(w, cp, claim)).To(BeEmpty(), "without a template there is no drift")
	})
	testenv.With(testenv.NoPolling(), testenv.Hosts(2), testenv.HA("9.2")).Subtest(t, "host_out_of_service", func(w *testenv.Env, _ *testenv.Process) {
		delayed := w.CloudProvider(func(d *cloudprovider.Deps) { d.HostDriftAfter, d.DrainMaintenance = 10*time.Minute, true })
		kept := w.CloudProvider(func(d *cloudprovider.Deps) { d.HostDriftAfter = 10 * time.Minute })
		never := w.CloudProvider()
		const host = "pve2" // pve1 serves the API
		claim := w.Launched("a", w.Class(), testenv.OnHost(host))
		w.Expect(drift(w, delayed, claim)).To(BeEmpty())

		w.Expect(w.Sim.SetMaintenance(host, true)).To(Succeed())
		w.Refresh()
		w.Expect(drift(w, delayed, claim)).To(Equal(v1alpha1.DriftHostInMaintenance), "a maintenance is intended, so there is no delay")
		w.Expect(drift(w, never, claim)).To(BeEmpty())
		w.Clock.Advance(time.Hour)

		w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
		w.Refresh()
		w.Expect(drift(w, kept, claim)).To(BeEmpty(), "it may be back soon, and maintenance does not count")
		w.Clock.Advance(10 * time.Minute)
		w.Expect(drift(w, kept, claim)).To(Equal(v1alpha1.DriftHostOffline))
		w.Expect(drift(w, never, claim)).To(BeEmpty())
		w.Expect(w.Sim.HostUp(host)).To(Succeed())
		w.Expect(w.Sim.SetMaintenance(host, false)).To(Succeed())
		w.Clock.Advance(time.Minute)
		w.Refresh()
		w.Expect(drift(w, delayed, claim)).To(BeEmpty())

		w.ApplySettings(`{"*": {"*": {"excluded": true}}}`)
		w.Expect(drift(w, delayed, claim)).To(Equal(v1alpha1.DriftHostExcluded), "an exclusion is intended, so there is no delay")
		w.Expect(drift(w, never, claim)).To(BeEmpty())
	})
	// A replacement would orphan its VM, which must be adopted first.
	testenv.With(testenv.NoPolling()).Subtest(t, "claim_of_other_controller", func(w *testenv.Env, _ *testenv.Process) {
		claim := w.Claim("a", w.Class(), func(c *karpv1.NodeClaim) {
			c.Annotations = map[string]string{v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: v1alpha1.HashVersion}
		})
		testenv.ModifyStatus(w, claim, func(c *karpv1.NodeClaim) { c.Status.ProviderID = "proxmox://region-1/20000" })
		w.Expect(drift(w, w.CloudProvider(), claim)).To(BeEmpty())
		w.Annotate(claim, map[string]string{
			v1alpha1.AnnotationLaunchedBy: v1alpha1.LaunchedByAdopted,
		})
		w.Expect(drift(w, w.CloudProvider(), claim)).To(Equal(v1alpha1.DriftNodeClass), "after its adoption")
	})
}

// otherTemplates adds a template of another image to each host.
func otherTemplates(s *pvesim.Scenario) {
	for i, host := range s.Hosts {
		s.Guests = append(s.Guests, pvesim.Guest{VMID: 9100 + i, Name: "ubuntu-2", Host: host.Name, Config: map[string]string{
			"template": "1", "memory": "2048", "cores": "2", "boot": "order=scsi0", "net0": "virtio=BC:24:11:99:00:01,bridge=vmbr0",
			"scsi0": fmt.Sprintf("local-lvm:base-%d-disk-0,size=3G", 9000+i),
		}})
	}
}

// TestIsDriftedOtherLabels checks that core's drift controller finds the offering of a Node whose labels no new
// Node gets, so the provider decides whether it is drifted.
func TestIsDriftedOtherLabels(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling(), testenv.Scenario(otherTemplates))
	class := k.readyPool()
	k.pending("pod", "1")
	claim := k.launchOne()
	testenv.Modify(k.Env, claim, func(claim *karpv1.NodeClaim) {
		maps.Copy(claim.Labels, map[string]string{
			v1alpha1.LabelInstanceCPUType: "another", v1alpha1.LabelInstanceImageID: "another", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot,
		})
	})
	k.expectDrift(claim, "")
	testenv.Reload(k.Env, class).Status.SelectedZones = []string{"region-1/pve1/9100"}
	k.Expect(k.Kube.Status().Update(k.ctx, class)).To(Succeed())
	k.expectDrift(claim, v1alpha1.DriftImage)
}

func TestNoQuorum(t *testing.T) {
	testenv.With(testenv.Hosts(3), testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		cp := w.CloudProvider(func(d *cloudprovider.Deps) { d.HostDriftAfter = 10 * time.Minute })
		class := w.Class()
		claim, changed := w.Launched("a", class), w.Launched("b", class)
		w.Annotate(changed, map[string]string{v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: v1alpha1.HashVersion})
		w.Expect(w.Sim.HostDown(w.Intent(claim).Host, "refused")).To(Succeed())
		w.Refresh()
		w.Clock.Advance(11 * time.Minute)
		w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftHostOffline))
		w.Expect(drift(w, cp, changed)).To(Equal(v1alpha1.DriftNodeClass))

		w.Sim.SetQuorum(false)
		w.Expect(w.Inventory.RefreshAll(w.Context())).To(MatchError(proxmox.ErrNoQuorum))
		w.Expect(drift(w, cp, claim)).To(BeEmpty())
		w.Expect(drift(w, cp, changed)).To(BeEmpty(), "its VM could not be deleted")
		w.Expect(cp.List(w.Context())).To(HaveLen(2), "no VM counts as deleted")
		_, err := cp.Create(w.Context(), w.Claim("c", class))
		w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
		w.Expect(err).To(MatchError(ContainSubstring("no quorum")))

		w.Sim.SetQuorum(true)
		w.Refresh()
		w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftHostOffline))
		create(w, w.Claim("d", class))
	})
}
