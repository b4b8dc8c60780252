// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"maps"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// created returns a claim as core stores it after Create.
func created(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	w.T.Helper()
	claim := w.Claim("a", class)
	filled, err := provider(w).Create(w.T.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Annotate(testenv.Reload(w, claim), filled.Annotations)
	claim.Status.ProviderID, claim.Status.ImageID = filled.Status.ProviderID, filled.Status.ImageID
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
	return claim
}

func drift(w *testenv.Env, cp *cloudprovider.CloudProvider, claim *karpv1.NodeClaim) string {
	w.T.Helper()
	reason, err := cp.IsDrifted(w.T.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	return string(reason)
}

func TestIsDriftedNodeClass(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	cp, class := provider(w), w.Class()
	claim := created(w, class)
	w.Expect(drift(w, cp, claim)).To(BeEmpty())

	testenv.Reload(w, class).Spec.Tags = []string{"another"}
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(drift(w, cp, claim)).To(BeEmpty(), "tags are written in place")

	class.Spec.BootDevice.Size = "60G"
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftNodeClass))

	w.Annotate(claim, map[string]string{v1alpha1.AnnotationNodeClassHashVersion: "v0"})
	w.Expect(drift(w, cp, claim)).To(BeEmpty(), "hashes of two versions cannot be compared")

	w.Expect(w.Kube.Delete(t.Context(), class)).To(Succeed())
	w.Expect(drift(w, cp, claim)).To(BeEmpty(), "without a class there is no drift")
}

func TestIsDriftedMachine(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	cp, class := provider(w), w.Class(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Machines = []v1alpha1.Machine{{Name: w.Named("db-1")}}
	})
	claim := created(w, class)
	w.Expect(w.Intent(claim).Machine).To(Equal(w.Named("db-1")))
	testenv.Reload(w, class).Spec.Machines = append(class.Spec.Machines, v1alpha1.Machine{Name: w.Named("db-2")})
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(drift(w, cp, claim)).To(BeEmpty(), "another machine does not concern it")
	class.Spec.Machines = class.Spec.Machines[1:]
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftMachine))
	w.Expect(cp.DescribeDrift(t.Context(), claim, v1alpha1.DriftMachine)).To(ContainSubstring("has no machine " + w.Named("db-1") + " any more"))
}

func TestIsDriftedImage(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) {
		for _, host := range []string{"pve1", "pve2"} {
			s.Guests = append(s.Guests, pvesim.Guest{VMID: 9100 + len(s.Guests), Name: "ubuntu-2", Host: host, Config: map[string]string{
				"template": "1", "memory": "2048", "cores": "2", "boot": "order=scsi0", "net0": "virtio=BC:24:11:99:00:01,bridge=vmbr0",
				"scsi0": "local-lvm:base-" + map[string]string{"pve1": "9000", "pve2": "9001"}[host] + "-disk-0,size=3G",
			}})
		}
	}))
	cp, class := provider(w), w.Class()
	claim := created(w, class)
	host := w.Intent(claim).Host
	var mine, theirs string
	for vmid, guest := range w.Inventory.View().Snapshots[testenv.Region].Guests {
		zone := v1alpha1.TemplateZone{Region: testenv.Region, Host: guest.Host, VMID: vmid}.String()
		switch {
		case guest.Name != "ubuntu-2":
		case guest.Host == host:
			mine = zone
		default:
			theirs = zone
		}
	}
	replace := func(zones ...string) {
		testenv.Reload(w, class).Status.SelectedZones = zones
		w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
	}
	old := v1alpha1.TemplateZone{Region: testenv.Region, Host: host, VMID: w.Intent(claim).TemplateID}.String()
	replace(old, theirs)
	w.Expect(drift(w, cp, claim)).To(BeEmpty(), "a new template on another host does not concern it")
	testenv.Reload(w, claim).Status.ImageID = "another"
	w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
	w.Expect(drift(w, cp, claim)).To(BeEmpty(), "a claim that was parked has the image of that time in its status")
	replace(mine, theirs)
	w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftImage))
	replace(theirs)
	w.Expect(drift(w, cp, claim)).To(BeEmpty(), "without a template there is no drift")
}

func TestIsDriftedHostChanged(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(2))
	delayed := provider(w, func(d *cloudprovider.Deps) { d.MigratedDriftAfter = 10 * time.Minute })
	never := provider(w)
	claim := w.Launched("a", w.Class())
	in := w.Intent(claim)
	target := testenv.OtherHost(in.Host)
	w.Expect(w.Sim.MigrateGuest(in.VMID, target)).To(Succeed())
	w.Refresh()
	vms, err := w.Instances.VMs.List()
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(vms).To(HaveLen(1), "a migrated VM is still found")
	moved, err := w.Instances.VMs.RecordHost(t.Context(), claim, vms[0])
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(moved).To(BeTrue())

	w.Expect(drift(w, delayed, claim)).To(BeEmpty(), "it may go back")
	w.Clock.Advance(11 * time.Minute)
	w.Expect(drift(w, delayed, claim)).To(Equal(v1alpha1.DriftHostChanged))
	w.Expect(drift(w, never, claim)).To(BeEmpty())
}

func TestIsDriftedHostOutOfService(t *testing.T) {
	t.Parallel()
	// Without polling: a poll must not begin before the clock is advanced and end after the failure.
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Scenario(func(s *pvesim.Scenario) { s.Version = "9.2" }))
	delayed := provider(w, func(d *cloudprovider.Deps) { d.HostDriftAfter, d.DrainMaintenance = 10*time.Minute, true })
	never := provider(w)
	claim := w.Launched("a", w.Class(), func(c *karpv1.NodeClaim) {
		c.Spec.Requirements = append(c.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
			Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpNotIn, Values: []string{w.Sim.Host()},
		})
	})
	kept := provider(w, func(d *cloudprovider.Deps) { d.HostDriftAfter = 10 * time.Minute })
	host := w.Intent(claim).Host
	w.Expect(host).NotTo(Equal(w.Sim.Host()), "another host serves the API")
	w.Refresh()
	w.Expect(drift(w, delayed, claim)).To(BeEmpty())

	w.Expect(w.Sim.SetMaintenance(host, true)).To(Succeed())
	w.Refresh()
	w.Expect(drift(w, delayed, claim)).To(Equal(v1alpha1.DriftHostInMaintenance), "a maintenance is intended, so there is no delay")
	w.Expect(drift(w, never, claim)).To(BeEmpty())
	w.Clock.Advance(time.Hour)

	w.Expect(w.Sim.HostDown(host, "noroute")).To(Succeed())
	w.Eventually(func() inventory.OutOfServiceReason {
		w.Refresh()
		state, _ := w.Inventory.View().Host(testenv.Region, host)
		return state.OutOfService
	}).Should(Equal(inventory.Offline))
	w.Expect(drift(w, kept, claim)).To(BeEmpty(), "it may be back soon, and maintenance does not count")
	w.Clock.Advance(11 * time.Minute)
	w.Expect(drift(w, kept, claim)).To(Equal(v1alpha1.DriftHostOffline))
	w.Expect(drift(w, never, claim)).To(BeEmpty())
	w.Expect(w.Sim.HostUp(host)).To(Succeed())
	w.Expect(w.Sim.SetMaintenance(host, false)).To(Succeed())
	w.Eventually(func() string {
		w.Refresh()
		return drift(w, delayed, claim)
	}).Should(BeEmpty())

	settings, err := inventory.ParseSettings([]byte(`{"*": {"*": {"excluded": true}}}`))
	w.Expect(err).NotTo(HaveOccurred())
	w.Inventory.SetSettings(settings)
	w.Expect(drift(w, delayed, claim)).To(Equal(v1alpha1.DriftHostExcluded), "an exclusion is intended, so there is no delay")
	w.Expect(drift(w, never, claim)).To(BeEmpty())
}

func TestRepairPolicies(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := coreoptions.ToContext(t.Context(), &coreoptions.Options{FeatureGates: coreoptions.FeatureGates{NodeRepair: true}})
	cp := cloudprovider.New(cloudprovider.Deps{Repair: cloudprovider.RepairTolerations{Unready: 15 * time.Minute, Request: time.Minute, Drain: 5 * time.Minute}})
	matcher, err := health.NewRepairPolicyMatcher(ctx, cp)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(matcher).NotTo(BeNil())
	sick := map[corev1.ConditionStatus]bool{}
	for _, policy := range cp.RepairPolicies() {
		if policy.ConditionType == corev1.NodeReady {
			sick[policy.ConditionStatus] = true
			g.Expect(policy.TolerationDuration).To(Equal(15 * time.Minute))
		}
	}
	g.Expect(sick).To(And(HaveKey(corev1.ConditionFalse), HaveKey(corev1.ConditionUnknown)))
}

// A replacement would orphan its VM, which must be adopted first.
func TestIsDriftedClaimOfOtherController(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Claim("a", w.Class(), func(c *karpv1.NodeClaim) {
		c.Annotations = map[string]string{v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: v1alpha1.HashVersion}
	})
	claim.Status.ProviderID = "proxmox://region-1/20000"
	reason, err := provider(w).IsDrifted(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(reason).To(BeEmpty())
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationLaunchIntent: `{"v":1,"region":"region-1","host":"pve1","vmid":20000}`})
	claim.Status.ProviderID = "proxmox://region-1/20000"
	reason, err = provider(w).IsDrifted(t.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(reason).To(BeEquivalentTo(v1alpha1.DriftNodeClass), "after its adoption")
}

// TestIsDriftedOtherLabels checks that core's drift controller finds the offering of a Node whose labels no new
// Node gets, so the provider decides whether it is drifted.
func TestIsDriftedOtherLabels(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		labels map[string]string
		zones  []string
		want   string
	}{
		"changed_CPU_of_the_template": {labels: map[string]string{v1alpha1.LabelInstanceCPUType: "another"}},
		"labels_of_another_provider": {labels: map[string]string{
			v1alpha1.LabelInstanceImageID: "another", karpv1.CapacityTypeLabelKey: karpv1.CapacityTypeSpot,
		}},
		"new_image": {zones: []string{v1alpha1.TemplateZone{Region: testenv.Region, Host: "pve1", VMID: 9100}.String()}, want: v1alpha1.DriftImage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKarpenter(t, testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
				s.Guests = append(s.Guests, pvesim.Guest{VMID: 9100, Name: "ubuntu-2", Host: "pve1", Config: map[string]string{
					"template": "1", "memory": "2048", "cores": "2", "boot": "order=scsi0", "net0": "virtio=BC:24:11:99:00:01,bridge=vmbr0",
					"scsi0": "local-lvm:base-9000-disk-0,size=3G",
				}})
			}))
			class := k.readyPool()
			k.pending("pod", "1")
			claim := k.launchPending()[0]
			testenv.Modify(k.Env, claim, func(claim *karpv1.NodeClaim) { maps.Copy(claim.Labels, c.labels) })
			if c.zones != nil {
				testenv.Reload(k.Env, class).Status.SelectedZones = c.zones
				k.Expect(k.Kube.Status().Update(k.ctx, class)).To(Succeed())
			}
			k.Clock.Advance(2 * time.Hour) // core checks the instance types of Nodes that are older than an hour
			_, err := disruption.NewController(k.Clock, k.Kube, provider(k.Env)).Reconcile(k.ctx, testenv.Reload(k.Env, claim))
			k.Expect(err).NotTo(HaveOccurred())
			drifted := testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted)
			if c.want == "" {
				k.Expect(drifted).To(BeNil())
			} else {
				k.Expect(drifted).NotTo(BeNil())
				k.Expect(drifted.Reason).To(Equal(c.want))
			}
		})
	}
}

// A Node is not replaced because the class of its NodePool does not exist: nothing could be
// launched instead.
func TestIsDriftedWithoutNodeClass(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	class := k.readyPool()
	k.pending("pod", "1")
	claim := k.launchPending()[0]
	k.Expect(k.Kube.Delete(k.ctx, class)).To(Succeed())
	k.Clock.Advance(2 * time.Hour) // core checks the instance types of Nodes that are older than an hour
	_, err := disruption.NewController(k.Clock, k.Kube, provider(k.Env)).Reconcile(k.ctx, testenv.Reload(k.Env, claim))
	k.Expect(err).To(MatchError(ContainSubstring("resolving the NodeClass")), "core retries it")
	k.Expect(testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted)).To(BeNil())
}
