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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// onBoth runs a test against both releases.
func onBoth(t *testing.T, test func(t *testing.T, release string)) {
	t.Parallel()
	for _, release := range []string{"8.4", "9.2"} {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			test(t, release)
		})
	}
}

// numaWorld is one host with two sockets of eight cores, and a class whose VMs lie
// there as the layout says. Somebody's guest with two vCPUs floats over both.
func numaWorld(t *testing.T, release string, layout v1alpha1.CPULayout, change ...func(*pvesim.Scenario)) *world {
	t.Helper()
	w := newWorld(t, 1, append(change, func(s *pvesim.Scenario) {
		s.Version = release
		s.Hosts[0].Sockets, s.Hosts[0].Cores, s.Hosts[0].NUMA = 2, 8, 2
	})...)
	w.class.Spec.CPU = &layout
	return w
}

// numbered tells which CPU is in which cell.
func numbered(s *setup) {
	hosts, err := inventory.ParseSettings([]byte(`{"*": {"*": {"nodes": {"0": {"cpus": "0-7"}, "1": {"cpus": "8-15"}}}}}`))
	if err != nil {
		panic(err)
	}
	s.hosts = hosts
}

// asRoot is a process with a login of root beside its token.
func (w *world) asRoot(s *setup) {
	root, err := proxmox.NewRoot(proxmox.ClusterConfig{
		Region: region, URLs: []string{w.sim.URL()}, CA: string(w.sim.CAPEM()),
		TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
		Root: &proxmox.RootLogin{Username: proxmox.RootUser, Password: pvesim.RootPassword},
	}, proxmox.Options{})
	w.Expect(err).NotTo(HaveOccurred())
	s.roots = map[string]proxmox.Root{region: root}
}

// sized is a claim of an instance type.
func (w *world) sized(p *process, name, instanceType string) (*karpv1.NodeClaim, instance.Intent, error) {
	w.t.Helper()
	claim := w.claim(name)
	claim.Spec.Requirements[0].Values = []string{instanceType}
	w.Expect(w.kube.Update(w.t.Context(), claim)).To(Succeed())
	in, err := p.Planner.Plan(w.t.Context(), claim, w.class, nil)
	if err != nil {
		return claim, in, err
	}
	claim = w.reread(claim)
	claim.Status.ProviderID = in.ProviderID()
	w.Expect(w.kube.Status().Update(w.t.Context(), claim)).To(Succeed())
	return w.reread(claim), in, nil
}

// runs launches a claim of an instance type and reads its VM's configuration.
func (w *world) runs(p *process, name, instanceType string) (*karpv1.NodeClaim, proxmox.VMConfig) {
	w.t.Helper()
	claim, in, err := w.sized(p, name, instanceType)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(p.Launcher.Launch(w.t.Context(), claim, w.class)).To(Succeed())
	cfg, err := w.client().VMConfig(w.t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	return w.reread(claim), cfg
}

// slot is a copy of the template that root has given an affinity.
func slot(vmid int, affinity string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		config := maps.Clone(s.Guests[0].Config)
		config["affinity"], config["tags"] = affinity, "karpenter-slot-ubuntu"
		config["scsi0"] = fmt.Sprintf("local-lvm:base-%d-disk-0,size=3G", vmid)
		config["ide2"] = fmt.Sprintf("local-lvm:vm-%d-cloudinit,media=cdrom", vmid)
		s.Guests = append(s.Guests, pvesim.Guest{VMID: vmid, Name: "ubuntu-slot", Host: "pve1", Config: config})
	}
}

// A plain token is enough to bind memory: the guest's cells are the host's.
func TestATokenBindsMemoryToCells(t *testing.T) {
	onBoth(t, func(t *testing.T, release string) {
		w := numaWorld(t, release, v1alpha1.CPULayout{NUMA: v1alpha1.NUMABind}, func(s *pvesim.Scenario) {
			// What a template brings is another VM's, and would keep this one from starting.
			s.Guests[0].Config["numa"], s.Guests[0].Config["numa3"] = "1", "cpus=0-1,hostnodes=0,memory=2048,policy=bind"
		})
		p := w.process()
		_, small := w.runs(p, "small", "t1.2VCPU-6GB")
		w.Expect(small.Options).To(And(
			HaveKeyWithValue("numa", "1"), HaveKeyWithValue("sockets", "1"), HaveKeyWithValue("cores", "2"), HaveKeyWithValue("memory", "6144"),
			HaveKeyWithValue("numa0", MatchRegexp(`^cpus=0-1,hostnodes=[01],memory=6144,policy=bind$`)),
			Not(HaveKey("numa1")), Not(HaveKey("numa3")), Not(HaveKey("affinity"))))

		// The floating guest takes a share of both cells: eight are more than either has.
		claim, large := w.runs(p, "large", "t1.8VCPU-24GB")
		w.Expect(large.Options).To(And(
			HaveKeyWithValue("sockets", "2"), HaveKeyWithValue("cores", "4"), HaveKeyWithValue("memory", "24576"),
			HaveKeyWithValue("numa0", "cpus=0-3,hostnodes=0,memory=12288,policy=bind"),
			HaveKeyWithValue("numa1", "cpus=4-7,hostnodes=1,memory=12288,policy=bind")))

		_, _, err := w.sized(p, "full", "t1.4VCPU-12GB")
		w.Expect(err).To(MatchError(ContainSubstring("pve1: cell 0: 1 CPUs free, 4 wanted; cell 1: 3 CPUs free, 4 wanted")))
		w.deleted(p, claim)
		_, _, err = w.sized(p, "room", "t1.4VCPU-12GB")
		w.Expect(err).NotTo(HaveOccurred(), "what a deleted VM had is free again")
	})
}

// Slots that root made once pin with a plain token: the clone keeps the affinity.
func TestSlotTemplatesPinOneVMEach(t *testing.T) {
	onBoth(t, func(t *testing.T, release string) {
		w := numaWorld(t, release, v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}, slot(9101, "4-5"), slot(9102, "8-9"))
		p := w.process()
		first, one := w.runs(p, "one", "t1.2VCPU-6GB")
		_, two := w.runs(p, "two", "t1.2VCPU-6GB")
		w.Expect([]string{one.Options["affinity"], two.Options["affinity"]}).To(ConsistOf("4-5", "8-9"))
		w.Expect(one.Options).To(HaveKeyWithValue("numa0", "cpus=0-1,hostnodes=0,memory=6144,policy=bind"), "memory beside the cores")
		in, _, err := instance.ReadIntent(first)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(in.TemplateID).To(Equal(9101))
		image, known := p.VMs.CurrentImage(first, w.class)
		w.Expect(known && image == in.ImageID).To(BeTrue(), "a VM in a slot has not drifted to the class's own template")

		_, _, err = w.sized(p, "three", "t1.2VCPU-6GB")
		w.Expect(err).To(MatchError(ContainSubstring("pve1: 2 slots with 2 CPUs or more, all in use")))
		_, _, err = w.sized(w.process(), "restarted", "t1.2VCPU-6GB")
		w.Expect(err).To(MatchError(ContainSubstring("all in use")), "a restart frees nothing")

		w.deleted(p, first)
		_, again := w.runs(p, "again", "t1.2VCPU-6GB")
		w.Expect(again.Options).To(HaveKeyWithValue("affinity", "4-5"), "the slot is free again")
	})
}

// With a root login the controller picks whole cores itself, and root does that alone.
func TestARootLoginPins(t *testing.T) {
	onBoth(t, func(t *testing.T, release string) {
		w := numaWorld(t, release, v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive, Hugepages: v1alpha1.Hugepages1Gi}, func(s *pvesim.Scenario) {
			s.Guests[1].Config["affinity"] = "0-3"
		})
		p := w.process(numbered, w.asRoot)
		_, one := w.runs(p, "one", "t1.2VCPU-6GB")
		w.Expect(one.Options).To(And(HaveKeyWithValue("hugepages", "1024"), HaveKeyWithValue("numa", "1")))
		w.Expect(one.Affinity()).To(Equal(cpuset.New(4, 5)), "the cores of somebody's pinned guest are not ours")
		mark, ok := ownership.Read(one.Description())
		w.Expect(ok).To(BeTrue())
		w.Expect(mark).To(And(HaveField("CPUs", "4-5"), HaveField("Pin", []int{4, 5})))

		planned, in, err := w.sized(p, "planned", "t1.2VCPU-6GB")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(in.Binding.CPUs).To(Equal("6-7"))
		next := w.process(numbered, w.asRoot)
		_, three := w.runs(next, "three", "t1.2VCPU-6GB")
		w.Expect(three.Affinity().Intersection(cpuset.New(4, 5, 6, 7)).IsEmpty()).To(BeTrue(), "cores that were promised before a restart stay promised: %s", three.Affinity())
		w.Expect(next.Launcher.Launch(t.Context(), planned, w.class)).To(Succeed())
		cfg, err := w.client().VMConfig(t.Context(), in.Host, in.VMID)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(cfg.Affinity().String()).To(Equal("6-7"))

		// Without the login a launch that was planned with it ends, and says why.
		late, _, err := w.sized(next, "late", "t1.2VCPU-6GB")
		w.Expect(err).NotTo(HaveOccurred())
		var final *instance.LaunchError
		w.Expect(w.process(numbered).Launcher.Launch(t.Context(), late, w.class)).To(And(
			BeAssignableToTypeOf(final), MatchError(ContainSubstring("no root login in the cloud config"))))
	})
}

// A hookscript in the template pins by the notes, which also keep the cores.
func TestAHookscriptPinsByTheNotes(t *testing.T) {
	t.Parallel()
	w := numaWorld(t, "9.2", v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}, func(s *pvesim.Scenario) {
		s.Guests[0].Config["hookscript"] = "local:snippets/pve-hook"
		s.Files = append(s.Files, pvesim.File{Host: "pve1", Storage: "local", Name: "snippets/pve-hook", Text: "#!"})
	})
	p := w.process(numbered)
	_, cfg := w.runs(p, "one", "t1.4VCPU-12GB")
	w.Expect(cfg.Options).NotTo(HaveKey("affinity"))
	w.Expect(cfg.Hookscript()).To(Equal("local:snippets/pve-hook"))
	mark, _ := ownership.Read(cfg.Description())
	w.Expect(mark.Pin).To(HaveLen(4))

	claims := &karpv1.NodeClaimList{}
	w.Expect(w.kube.List(t.Context(), claims)).To(Succeed())
	for n := range claims.Items {
		w.Expect(w.kube.Delete(t.Context(), &claims.Items[n])).To(Succeed())
	}
	pinned, err := cpuset.Parse(mark.CPUs)
	w.Expect(err).NotTo(HaveOccurred())
	for _, cell := range w.process(numbered).inventory.View().Cells(region, "pve1").Cells {
		for _, core := range cell.FreeCores {
			w.Expect(core.Intersection(pinned).IsEmpty()).To(BeTrue(), "core %s is pinned to", core)
		}
	}
}

func TestPinningIsRefusedUpFrontWithoutAWay(t *testing.T) {
	t.Parallel()
	w := numaWorld(t, "9.2", v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive})
	p := w.process(numbered)
	_, _, err := w.sized(p, "one", "t1.2VCPU-6GB")
	w.Expect(err).To(MatchError(And(
		ContainSubstring("the tag karpenter-slot-ubuntu"), ContainSubstring("a hookscript named pve-hook"), ContainSubstring("a root login in the cloud config"))))
	w.Expect(w.ours()).To(BeEmpty())

	unnumbered := w.process(w.asRoot)
	_, _, err = w.sized(unnumbered, "two", "t1.2VCPU-6GB")
	w.Expect(err).To(MatchError(ContainSubstring("lscpu -e=CPU,CORE,NODE")), "cores are not guessed")
}
