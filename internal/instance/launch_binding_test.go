// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/utils/cpuset"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// testNUMA runs a test with all releases of Proxmox VE on one Host with two sockets of eight cores,
// and a class with the layout. A foreign guest with two vCPUs is not bound.
func testNUMA(t *testing.T, layout v1alpha1.CPULayout, scenario func(*pvesim.Scenario), test func(w *testenv.Env, p *testenv.Process)) {
	t.Helper()
	t.Parallel()
	cells, err := declared.ParseSettings([]byte(`{"*": {"*": {"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "8-15"}}}}}`))
	testenv.Must(t, err)
	for _, release := range []string{"8.4", "9.2"} {
		testenv.With(testenv.NoPolling(), testenv.HostSettings(cells), testenv.Scenario(scenario, func(s *pvesim.Scenario) {
			s.Version = release
			s.Hosts[0].Sockets, s.Hosts[0].Cores, s.Hosts[0].NUMA = 2, 8, 2
		})).Subtest(t, release, func(w *testenv.Env, p *testenv.Process) {
			w.NodeClass.Spec.CPU = &layout
			test(w, p)
		})
	}
}

// ofType requests an instance type.
func ofType(instanceType string) func(*karpv1.NodeClaim) {
	return func(claim *karpv1.NodeClaim) { claim.Spec.Requirements[0].Values = []string{instanceType} }
}

// planFails plans a claim of an instance type that does not fit, and returns the error.
func planFails(w *testenv.Env, p *testenv.Process, name, instanceType string) error {
	w.T.Helper()
	_, err := p.Instances.Planner.Plan(w.Context(), w.Claim(name, w.NodeClass, ofType(instanceType)), w.NodeClass, false)
	w.Expect(err).To(HaveOccurred())
	return err
}

// launchSized launches a claim of an instance type and returns its VM's configuration.
func launchSized(w *testenv.Env, p *testenv.Process, name, instanceType string) (*karpv1.NodeClaim, proxmox.VMConfig) {
	w.T.Helper()
	claim := p.Launched(name, w.NodeClass, ofType(instanceType))
	return claim, w.VMConfig(w.Intent(claim))
}

// addSlotTemplate adds a copy of the template with an affinity.
func addSlotTemplate(s *pvesim.Scenario, vmid int, affinity string) {
	config := maps.Clone(s.Guests[0].Config)
	config["affinity"], config["tags"] = affinity, "karpenter-slot-ubuntu"
	config["scsi0"] = fmt.Sprintf("local-lvm:base-%d-disk-0,size=3G", vmid)
	config["ide2"] = fmt.Sprintf("local-lvm:vm-%d-cloudinit,media=cdrom", vmid)
	s.Guests = append(s.Guests, pvesim.Guest{VMID: vmid, Name: "ubuntu-slot", Host: "pve1", Config: config})
}

// Memory can be bound with a token.
func TestLaunchNUMABinding(t *testing.T) {
	testNUMA(t, v1alpha1.CPULayout{NUMA: v1alpha1.NUMABind}, func(s *pvesim.Scenario) {
		// Cells of the template would make the start fail.
		s.Guests[0].Config["numa"], s.Guests[0].Config["numa3"] = "1", "cpus=0-1,hostnodes=0,memory=2048,policy=bind"
	}, func(w *testenv.Env, p *testenv.Process) {
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

		w.Expect(planFails(w, p, "full", "t1.4VCPU-12GB")).To(MatchError(
			ContainSubstring("pve1: cell 0: 1 CPUs free, 4 requested; cell 1: 3 CPUs free, 4 requested")))
		p.Delete(claim)
		p.Planned("fits", w.NodeClass, ofType("t1.4VCPU-12GB")) // the CPUs of a deleted VM are free
	})
}

// With slot templates a token can pin: the clone inherits the affinity.
func TestLaunchPinningBySlot(t *testing.T) {
	testNUMA(t, v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}, func(s *pvesim.Scenario) {
		addSlotTemplate(s, 9101, "4-5")
		addSlotTemplate(s, 9102, "8-9")
	}, func(w *testenv.Env, p *testenv.Process) {
		first, one := launchSized(w, p, "one", "t1.2VCPU-6GB")
		_, two := launchSized(w, p, "two", "t1.2VCPU-6GB")
		w.Expect([]string{one.Options["affinity"], two.Options["affinity"]}).To(ConsistOf("4-5", "8-9"))
		w.Expect(one.Options).To(HaveKeyWithValue("numa0", "cpus=0-1,hostnodes=0,memory=6144,policy=bind"), "memory of the same cell")
		in := w.Intent(first)
		w.Expect(in.TemplateID).To(Equal(9101))
		p.Refresh()
		w.Expect(p.Instances.VMs.ImageDrift(first, w.NodeClass)).To(BeEmpty(), "a VM in a slot does not drift to the template of the class")

		w.Expect(planFails(w, p, "three", "t1.2VCPU-6GB")).To(MatchError(ContainSubstring("pve1: 2 slots with 2 CPUs or more, all in use")))
		w.Expect(planFails(w, w.StartProcess(), "restarted", "t1.2VCPU-6GB")).To(MatchError(ContainSubstring("all in use")), "slots stay in use after a restart")

		p.Delete(first)
		_, again := launchSized(w, p, "again", "t1.2VCPU-6GB")
		w.Expect(again.Options).To(HaveKeyWithValue("affinity", "4-5"), "the slot is free again")
	})
}

// With a root login the controller chooses whole cores, and root sets them.
func TestLaunchPinningByRoot(t *testing.T) {
	layout := v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive, Hugepages: v1alpha1.Hugepages1Gi}
	testNUMA(t, layout, func(s *pvesim.Scenario) { s.Guests[1].Config["affinity"] = "0-3" }, func(w *testenv.Env, without *testenv.Process) {
		p := w.StartProcess(testenv.AsRoot())
		_, one := launchSized(w, p, "one", "t1.2VCPU-6GB")
		w.Expect(one.Options).To(And(HaveKeyWithValue("hugepages", "1024"), HaveKeyWithValue("numa", "1")))
		w.Expect(one.Compute().Affinity()).To(Equal(cpuset.New(4, 5)), "the cores of a pinned foreign guest are not used")
		mark, ok := ownership.Read(one.Description())
		w.Expect(ok).To(BeTrue())
		w.Expect(mark).To(And(HaveField("CPUs", "4-5"), HaveField("Pin", []int{4, 5})))

		planned := p.Planned("planned", w.NodeClass)
		w.Expect(w.Intent(planned).Binding.CPUs).To(Equal("6-7"))
		next := w.StartProcess(testenv.AsRoot())
		_, three := launchSized(w, next, "three", "t1.2VCPU-6GB")
		w.Expect(three.Compute().Affinity().Intersection(cpuset.New(4, 5)).List()).To(BeEmpty())
		w.Expect(next.Launch(planned, w.NodeClass)).To(Succeed(), "it gets cores again")
		w.Expect(w.VMConfig(w.Intent(planned)).Compute().Affinity().Intersection(three.Compute().Affinity().Union(cpuset.New(4, 5))).List()).To(BeEmpty())

		// Without the login, a launch that was planned with it fails.
		late := next.Planned("late", w.NodeClass)
		without.Refresh()
		w.Expect(without.Launch(late, w.NodeClass)).To(And(
			BeAssignableToTypeOf(&instance.LaunchError{}), MatchError(ContainSubstring("a root login in the cloud config; this host has none of them"))))
	})
}

// A hookscript of the template pins the VM by its notes, which also reserve the cores.
func TestLaunchPinningByHookscript(t *testing.T) {
	testNUMA(t, v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}, func(s *pvesim.Scenario) {
		s.Guests[0].Config["hookscript"] = "local:snippets/pve-hook"
		s.Files = append(s.Files, pvesim.File{Host: "pve1", Storage: "local", Name: "snippets/pve-hook", Text: "#!"})
	}, func(w *testenv.Env, p *testenv.Process) {
		claim, cfg := launchSized(w, p, "one", "t1.4VCPU-12GB")
		w.Expect(cfg.Options).To(And(Not(HaveKey("affinity")), HaveKeyWithValue("hookscript", "local:snippets/pve-hook")))
		mark, _ := ownership.Read(cfg.Description())
		w.Expect(mark.Pin).To(HaveLen(4))

		w.Expect(w.Kube.Delete(w.Context(), claim)).To(Succeed())
		pinned, err := cpuset.Parse(mark.CPUs)
		w.Expect(err).NotTo(HaveOccurred())
		for _, cell := range w.StartProcess().Inventory.View().Cells(testenv.Region, "pve1").Cells {
			for _, core := range cell.FreeCores {
				w.Expect(core.Intersection(pinned).IsEmpty()).To(BeTrue(), "core %s is pinned to", core)
			}
		}
	})
}

func TestPlanPinningUnsupported(t *testing.T) {
	testNUMA(t, v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}, func(*pvesim.Scenario) {}, func(w *testenv.Env, p *testenv.Process) {
		w.Expect(planFails(w, p, "one", "t1.2VCPU-6GB")).To(MatchError(And(
			ContainSubstring("the tag karpenter-slot-ubuntu"), ContainSubstring("a hookscript named pve-hook"), ContainSubstring("a root login in the cloud config"))))
		w.Expect(w.VMs()).To(BeEmpty())
		withoutCells := w.StartProcess(testenv.AsRoot(), testenv.HostSettings(declared.Settings{}))
		w.Expect(planFails(w, withoutCells, "two", "t1.2VCPU-6GB")).To(MatchError(ContainSubstring("lscpu -e=CPU,CORE,NODE")), "cores are not guessed")
	})
}
