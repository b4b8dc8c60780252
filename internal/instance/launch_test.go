// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// launchVM returns a claim whose VM was launched, and its intent.
func launchVM(w *testenv.Env, p *testenv.Process) (*karpv1.NodeClaim, instance.Intent) {
	w.T.Helper()
	claim := p.Launched("pool-abc", w.NodeClass)
	return claim, w.Intent(claim)
}

// bootDisk returns the boot disk of a VM.
func bootDisk(w *testenv.Env, in instance.Intent) proxmox.Drive {
	w.T.Helper()
	disk, ok := w.VMConfig(in).Drives().Boot()
	w.Expect(ok).To(BeTrue())
	return disk
}

// templatesWith changes the options of every template; an empty value removes one.
func templatesWith(options map[string]string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		for _, guest := range s.Guests {
			for option, value := range options {
				if guest.Config["template"] != "1" {
					continue
				}
				guest.Config[option] = value
				if value == "" {
					delete(guest.Config, option)
				}
			}
		}
	}
}

func TestLaunchAndDelete(t *testing.T) {
	testenv.With(testenv.Hosts(2)).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchVM(w, p)
		w.Expect(p.Instances.VMs.IsLaunched(claim)).To(BeTrue())
		w.Expect(p.Instances.Launcher.Progress(claim)).To(HaveKey(instance.PhaseStarted))

		cfg := w.VMConfig(in)
		w.Expect(cfg.Name()).To(Equal("pool-abc"))
		w.Expect(cfg.Compute().Cores()).To(Equal(2))
		w.Expect(cfg.Compute().MemoryMiB()).To(Equal(in.MemoryMiB))
		w.Expect(cfg.Tags()).To(ConsistOf("karpenter"))
		w.Expect(strings.ToLower(cfg.SMBIOS().UUID)).To(Equal(string(claim.UID)))
		w.Expect(cfg.Network().NICs()[0].MAC).To(Equal(in.MACs["net0"]))
		w.Expect(cfg.Description()).To(And(
			ContainSubstring("run: `kubectl delete nodeclaim "+claim.Name+"`\n"),
			ContainSubstring("\n- Kubernetes cluster: "+w.KubeCluster+" (UID"),
			ContainSubstring("\n- NodePool: "+claim.Labels["karpenter.sh/nodepool"]+"\n"),
			ContainSubstring("\n- Size: t1.2VCPU-6GB, 2 CPUs, 6 GiB memory, 30 GiB disk\n"),
			MatchRegexp(`\n- Price: 0\.06\d+, without currency\n`),
		))
		w.Expect(bootDisk(w, in).SizeBytes).To(BeNumerically(">=", in.DiskBytes))
		w.Expect(w.Running(claim)).To(BeTrue())
		p.Refresh()
		w.Expect(p.Instances.VMs.List()).To(ConsistOf(HaveField("VMID", in.VMID)))

		w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
		w.ExpectNoBootDrives()
		w.ExpectNoTokens()
		p.DeleteAll(claim)
	})
}

// The limits for one node with a linked clone, a boot drive, one security group and a
// resized disk.
func TestLaunchAndDeleteRequests(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, p *testenv.Process) {
		// The first launch measures how long tasks take.
		p.Delete(p.Launched("measured", w.NodeClass))
		claim := p.Planned("pool-abc", w.NodeClass)
		launch := withoutPolls(w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) }))
		w.Expect(len(launch)).To(BeNumerically("<=", 12), "%v", names(launch))
		claim = w.Stored(claim)
		p.Refresh()
		deletion := withoutPolls(w.RecordRequests(func() { p.Delete(claim) }))
		w.Expect(len(deletion)).To(BeNumerically("<=", 5), "%v", names(deletion))
	})
}

// withoutPolls returns the requests other than polls of tasks.
func withoutPolls(requests []pvesim.Request) []pvesim.Request {
	return slices.DeleteFunc(slices.Clone(requests), func(r pvesim.Request) bool {
		return r.Method == "GET" && strings.HasPrefix(r.Template, "/nodes/{node}/tasks")
	})
}

func names(requests []pvesim.Request) []string {
	out := make([]string, 0, len(requests))
	for _, request := range requests {
		out = append(out, request.Method+" "+request.Template)
	}
	return out
}

// All operations work with exactly the documented privileges.
func TestDocumentedRoles(t *testing.T) {
	t.Parallel()
	for name, role := range map[string]func(*pvesim.Scenario){"cluster": func(*pvesim.Scenario) {}, "pool": pvesim.PoolScoped} {
		for _, version := range []string{"8.4", "9.2"} {
			testenv.With(testenv.Hosts(2), testenv.Scenario(role, func(s *pvesim.Scenario) {
				s.Version = version
			})).Subtest(t, name+"_"+version, func(w *testenv.Env, p *testenv.Process) {
				if name == "pool" {
					w.NodeClass.Spec.ResourcePool = pvesim.PoolID
				}
				claim := p.Launched("pool-abc", w.NodeClass)
				w.Eventually(p.Instances.VMs.List).Should(HaveLen(1))
				w.Expect(p.Instances.Deleter.CleanupBootDrive(w.Context(), claim)).To(Succeed())
				w.Expect(w.Sim.PowerOffGuest(w.Intent(claim).VMID)).To(Succeed())
				w.Eventually(func() (bool, error) { return p.Instances.Power.PowerOn(w.Context(), claim) }).Should(BeTrue())
				p.Delete(w.Stored(claim))
				p.Delete(w.Stored(claim)) // it is idempotent

				// Another process resumes a launch.
				second := p.Planned("pool-def", w.NodeClass)
				next := w.StartProcess()
				next.MustLaunch(second, w.NodeClass)
				next.Delete(w.Stored(second))
				w.Expect(w.VMs()).To(BeEmpty())
				w.ExpectNoTokens()
			})
		}
	}
}
