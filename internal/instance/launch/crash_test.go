// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Whatever the moment at which the controller dies in a launch, the next one
// ends with exactly one VM: the one that the intent names.
func TestLaunchCrash(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Still())
	claim := p.Planned("recorded", w.NodeClass)
	calls := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
	for _, point := range testenv.CrashPoints(calls) {
		t.Run(point.Name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			dying := w.StartProcess(testenv.Still())
			claim := dying.Planned("pool-abc", w.NodeClass)
			intent, _, err := instance.ReadIntent(claim)
			w.Expect(err).NotTo(HaveOccurred())
			err = dying.Instances.Launcher.Launch(testenv.DieAt(w.T, w.Sim, point.Request, point.After), claim, w.NodeClass)
			w.EndCrash(err != nil)

			next := w.StartProcess()
			w.Eventually(func() error { return next.Launch(w.Stored(claim), w.NodeClass) }).
				WithTimeout(30 * time.Second).WithPolling(100 * time.Millisecond).Should(Succeed())
			w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", intent.VMID)))
			status, err := w.Client().VMStatus(t.Context(), intent.Host, intent.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(status.Running).To(BeTrue())
			cfg, err := w.Client().VMConfig(t.Context(), intent.Host, intent.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			disk, _ := cfg.Drives().Boot()
			w.Expect(disk.SizeBytes).To(BeNumerically(">=", intent.DiskBytes), "the disk was grown")
			w.Expect(cfg.Compute().Cores()).To(Equal(intent.Cores))
			next.Delete(w.Stored(claim))
			w.ExpectNoOrphans()
		})
	}
}

// The figures to beat: one node, linked clone, boot drive, one security group,
// disk resized.
func TestLaunchAndDeleteRequests(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Still(), testenv.RealTime())
	// The first launch teaches how long tasks take here.
	p.Delete(p.Launched("teacher", w.NodeClass))
	claim := p.Planned("pool-abc", w.NodeClass)
	launch := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
	w.Expect(len(launch)).To(BeNumerically("<=", 14), "%v", names(launch))
	claim = w.Stored(claim)
	w.Expect(p.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed())
	removal := w.RecordRequests(func() { p.Delete(claim) })
	w.Expect(len(removal)).To(BeNumerically("<=", 8), "%v", names(removal))
}

func names(calls []pvesim.Request) []string {
	out := make([]string, 0, len(calls))
	for _, call := range calls {
		out = append(out, call.Method+" "+call.Template)
	}
	return out
}
