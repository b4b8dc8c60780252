// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"fmt"
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// testReleases runs a test with all releases of Proxmox VE.
func testReleases(t *testing.T, test func(t *testing.T, release string)) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			test(t, release)
		})
	}
}

// newNUMAEnv returns an Env with one Host with two sockets of eight cores, and a class
// with the layout. A foreign guest with two vCPUs is not bound.
func newNUMAEnv(t *testing.T, release string, layout v1alpha1.CPULayout, change ...func(*pvesim.Scenario)) *testenv.Env {
	t.Helper()
	w := testenv.NewFake(t, testenv.Scenario(change...), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Version = release
		s.Hosts[0].Sockets, s.Hosts[0].Cores, s.Hosts[0].NUMA = 2, 8, 2
	}))
	w.NodeClass.Spec.CPU = &layout
	return w
}

// numberedCPUs sets which CPU is in which cell.
func numberedCPUs() testenv.Option {
	hosts, err := inventory.ParseSettings([]byte(`{"*": {"*": {"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "8-15"}}}}}`))
	if err != nil {
		panic(err)
	}
	return testenv.HostSettings(hosts)
}

// planSized plans a claim of an instance type.
func planSized(w *testenv.Env, p *testenv.Process, name, instanceType string) (*karpv1.NodeClaim, instance.Intent, error) {
	w.T.Helper()
	claim := w.Claim(name, w.NodeClass)
	claim.Spec.Requirements[0].Values = []string{instanceType}
	w.Expect(w.Kube.Update(w.T.Context(), claim)).To(Succeed())
	in, err := p.Instances.Planner.Plan(w.T.Context(), claim, w.NodeClass, plan.Options{})
	if err != nil {
		return claim, in, err
	}
	claim = w.Stored(claim)
	claim.Status.ProviderID = in.ProviderID()
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())
	return w.Stored(claim), in, nil
}

// launchSized launches a claim of an instance type and returns its VM's configuration.
func launchSized(w *testenv.Env, p *testenv.Process, name, instanceType string) (*karpv1.NodeClaim, proxmox.VMConfig) {
	w.T.Helper()
	claim, in, err := planSized(w, p, name, instanceType)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(p.Instances.Launcher.Launch(w.T.Context(), claim, w.NodeClass)).To(Succeed())
	cfg, err := w.Client.VMConfig(w.T.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	return w.Stored(claim), cfg
}

// slotTemplate adds a copy of the template with an affinity.
func slotTemplate(vmid int, affinity string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		config := maps.Clone(s.Guests[0].Config)
		config["affinity"], config["tags"] = affinity, "karpenter-slot-ubuntu"
		config["scsi0"] = fmt.Sprintf("local-lvm:base-%d-disk-0,size=3G", vmid)
		config["ide2"] = fmt.Sprintf("local-lvm:vm-%d-cloudinit,media=cdrom", vmid)
		s.Guests = append(s.Guests, pvesim.Guest{VMID: vmid, Name: "ubuntu-slot", Host: "pve1", Config: config})
	}
}

// Memory can be bound with a token.
func TestLaunchNUMABinding(t *testing.T) {
	testReleases(t, func(t *testing.T, release string) {
		w := newNUMAEnv(t, release, v1alpha1.CPULayout{NUMA: v1alpha1.NUMABind}, func(s *pvesim.Scenario) {
			// Cells of the template would make the start fail.
			s.Guests[0].Config["numa"], s.Guests[0].Config["numa3"] = "1", "cpus=0-1,hostnodes=0,memory=2048,policy=bind"
		})
		p := w.StartProcess()
		_, small := launchSized(w, p, "small", "t1.2VCPU-6GB")
		w.Expect(small.Options).To(And(
			HaveKeyWithValue("numa", "1"), HaveKeyWithValue("sockets", "1"), HaveKeyWithValue("cores", "2"), HaveKeyWithValue("memory", "6144"),
			HaveKeyWithValue("numa0", MatchRegexp(`^cpus=0-1,hostnodes=[01],memory=6144,policy=bind$`)),
			Not(HaveKey("numa1")), Not(HaveKey("numa3")), Not(HaveKey("affinity"))))

		// The unbound guest uses both cells, so neither has eight free CPUs.
		claim, large := launchSized(w, p, "large", "t1.8VCPU-24GB")
		w.Expect(large.Options).To(And(
			HaveKeyWithValue("sockets", "2"), HaveKeyWithValue("cores", "4"), HaveKeyWithValue("memory", "24576"),
			HaveKeyWithValue("numa0", "cpus=0-3,hostnodes=0,memory=12288,policy=bind"),
			HaveKeyWithValue("numa1", "cpus=4-7,hostnodes=1,memory=12288,policy=bind")))

		_, _, err := planSized(w, p, "full", "t1.4VCPU-12GB")
		w.Expect(err).To(MatchError(ContainSubstring("pve1: cell 0: 1 CPUs free, 4 requested; cell 1: 3 CPUs free, 4 requested")))
		p.Delete(claim)
		_, _, err = planSized(w, p, "fits", "t1.4VCPU-12GB")
		w.Expect(err).NotTo(HaveOccurred(), "the CPUs of a deleted VM are free")
	})
}

// With slot templates a token can pin: the clone inherits the affinity.
func TestLaunchPinningBySlot(t *testing.T) {
	testReleases(t, func(t *testing.T, release string) {
		w := newNUMAEnv(t, release, v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}, slotTemplate(9101, "4-5"), slotTemplate(9102, "8-9"))
		p := w.StartProcess()
		first, one := launchSized(w, p, "one", "t1.2VCPU-6GB")
		_, two := launchSized(w, p, "two", "t1.2VCPU-6GB")
		w.Expect([]string{one.Options["affinity"], two.Options["affinity"]}).To(ConsistOf("4-5", "8-9"))
		w.Expect(one.Options).To(HaveKeyWithValue("numa0", "cpus=0-1,hostnodes=0,memory=6144,policy=bind"), "memory of the same cell")
		in, _, err := instance.ReadIntent(first)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(in.TemplateID).To(Equal(9101))
		image, known := p.Instances.VMs.CurrentImage(first, w.NodeClass)
		w.Expect(known && image == in.ImageID).To(BeTrue(), "a VM in a slot does not drift to the template of the class")

		_, _, err = planSized(w, p, "three", "t1.2VCPU-6GB")
		w.Expect(err).To(MatchError(ContainSubstring("pve1: 2 slots with 2 CPUs or more, all in use")))
		_, _, err = planSized(w, w.StartProcess(), "restarted", "t1.2VCPU-6GB")
		w.Expect(err).To(MatchError(ContainSubstring("all in use")), "slots stay in use after a restart")

		p.Delete(first)
		_, again := launchSized(w, p, "again", "t1.2VCPU-6GB")
		w.Expect(again.Options).To(HaveKeyWithValue("affinity", "4-5"), "the slot is free again")
	})
}

// With a root login the controller chooses whole cores, and root sets them.
func TestLaunchPinningByRoot(t *testing.T) {
	testReleases(t, func(t *testing.T, release string) {
		w := newNUMAEnv(t, release, v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive, Hugepages: v1alpha1.Hugepages1Gi}, func(s *pvesim.Scenario) {
			s.Guests[1].Config["affinity"] = "0-3"
		})
		p := w.StartProcess(numberedCPUs(), testenv.AsRoot())
		_, one := launchSized(w, p, "one", "t1.2VCPU-6GB")
		w.Expect(one.Options).To(And(HaveKeyWithValue("hugepages", "1024"), HaveKeyWithValue("numa", "1")))
		w.Expect(one.Compute().Affinity()).To(Equal(cpuset.New(4, 5)), "the cores of a pinned foreign guest are not used")
		mark, ok := ownership.Read(one.Description())
		w.Expect(ok).To(BeTrue())
		w.Expect(mark).To(And(HaveField("CPUs", "4-5"), HaveField("Pin", []int{4, 5})))

		planned, in, err := planSized(w, p, "planned", "t1.2VCPU-6GB")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(in.Binding.CPUs).To(Equal("6-7"))
		next := w.StartProcess(numberedCPUs(), testenv.AsRoot())
		_, three := launchSized(w, next, "three", "t1.2VCPU-6GB")
		w.Expect(three.Compute().Affinity().Intersection(cpuset.New(4, 5, 6, 7)).IsEmpty()).To(BeTrue(), "cores that were reserved before a restart stay reserved: %s", three.Compute().Affinity())
		w.Expect(next.Launch(planned, w.NodeClass)).To(Succeed())
		cfg, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(cfg.Compute().Affinity().String()).To(Equal("6-7"))

		// Without the login, a launch that was planned with it fails.
		late, _, err := planSized(w, next, "late", "t1.2VCPU-6GB")
		w.Expect(err).NotTo(HaveOccurred())
		var final *instance.LaunchError
		w.Expect(w.StartProcess(numberedCPUs()).Launch(late, w.NodeClass)).To(And(
			BeAssignableToTypeOf(final), MatchError(ContainSubstring("no root login in the cloud config"))))
	})
}

// A hookscript of the template pins the VM by its notes, which also reserve the cores.
func TestLaunchPinningByHookscript(t *testing.T) {
	t.Parallel()
	w := newNUMAEnv(t, "9.2", v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}, func(s *pvesim.Scenario) {
		s.Guests[0].Config["hookscript"] = "local:snippets/pve-hook"
		s.Files = append(s.Files, pvesim.File{Host: "pve1", Storage: "local", Name: "snippets/pve-hook", Text: "#!"})
	})
	p := w.StartProcess(numberedCPUs())
	_, cfg := launchSized(w, p, "one", "t1.4VCPU-12GB")
	w.Expect(cfg.Options).NotTo(HaveKey("affinity"))
	w.Expect(cfg.Options["hookscript"]).To(Equal("local:snippets/pve-hook"))
	mark, _ := ownership.Read(cfg.Description())
	w.Expect(mark.Pin).To(HaveLen(4))

	claims := &karpv1.NodeClaimList{}
	w.Expect(w.Kube.List(t.Context(), claims)).To(Succeed())
	for n := range claims.Items {
		w.Expect(w.Kube.Delete(t.Context(), &claims.Items[n])).To(Succeed())
	}
	pinned, err := cpuset.Parse(mark.CPUs)
	w.Expect(err).NotTo(HaveOccurred())
	for _, cell := range w.StartProcess(numberedCPUs()).Inventory.View().Cells(testenv.Region, "pve1").Cells {
		for _, core := range cell.FreeCores {
			w.Expect(core.Intersection(pinned).IsEmpty()).To(BeTrue(), "core %s is pinned to", core)
		}
	}
}

func TestPlanPinningUnsupported(t *testing.T) {
	t.Parallel()
	w := newNUMAEnv(t, "9.2", v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive})
	p := w.StartProcess(numberedCPUs())
	_, _, err := planSized(w, p, "one", "t1.2VCPU-6GB")
	w.Expect(err).To(MatchError(And(
		ContainSubstring("the tag karpenter-slot-ubuntu"), ContainSubstring("a hookscript named pve-hook"), ContainSubstring("a root login in the cloud config"))))
	w.Expect(w.VMs()).To(BeEmpty())

	withoutCells := w.StartProcess(testenv.AsRoot())
	_, _, err = planSized(w, withoutCells, "two", "t1.2VCPU-6GB")
	w.Expect(err).To(MatchError(ContainSubstring("lscpu -e=CPU,CORE,NODE")), "cores are not guessed")
}
