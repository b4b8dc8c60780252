// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// Whenever the controller is killed during a launch, the next one completes it with
// exactly one VM: that of the intent.
func TestLaunchCrash(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	w.NodeClass.Spec.Disks = crashDisks()
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Planned("recorded", w.NodeClass)
	requests := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
	for _, point := range testenv.CrashPoints(requests) {
		t.Run(point.Name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			w.NodeClass.Spec.Disks = crashDisks()
			killed := w.StartProcess(testenv.NoPolling())
			claim := killed.Planned("pool-abc", w.NodeClass)
			intent, _, err := instance.ReadIntent(claim)
			w.Expect(err).NotTo(HaveOccurred())
			err = killed.Instances.Launcher.Launch(testenv.KillAtRequest(w.T, w.Sim, point.Request, point.After), claim, w.NodeClass)
			w.EndCrash(err != nil)

			next := w.StartProcess()
			w.Eventually(func() error { return next.Launch(w.Stored(claim), w.NodeClass) }).
				WithTimeout(30 * time.Second).WithPolling(100 * time.Millisecond).Should(Succeed())
			w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", intent.VMID)))
			status, err := w.Client.VMStatus(t.Context(), intent.Host, intent.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(status.Running).To(BeTrue())
			cfg, err := w.Client.VMConfig(t.Context(), intent.Host, intent.VMID)
			w.Expect(err).NotTo(HaveOccurred())
			disk, _ := cfg.Drives().Boot()
			w.Expect(disk.SizeBytes).To(BeNumerically(">=", intent.DiskBytes), "the disk was resized")
			w.Expect(cfg.Compute().Cores()).To(Equal(intent.Cores))
			w.Expect(diskVolumes(w, intent)).To(HaveLen(3), "the boot disk and the others exist once")
			next.Delete(w.Stored(claim))
			w.ExpectNoOrphans()
			w.Expect(diskVolumes(w, intent)).To(BeEmpty())
		})
	}
}

func crashDisks() []v1alpha1.Disk {
	return []v1alpha1.Disk{{Name: "data", Size: "10Gi"}, {Name: "scratch", Size: "1Gi", Bus: v1alpha1.DiskBusVirtIO}}
}

// diskVolumes returns the volumes of a VM.
func diskVolumes(w *testenv.Env, in instance.Intent) []string {
	volumes, err := w.Client.Volumes(w.T.Context(), in.Host, in.Storage, "images")
	w.Expect(err).NotTo(HaveOccurred())
	var out []string
	for _, volume := range volumes {
		if volume.VMID == in.VMID {
			out = append(out, volume.ID)
		}
	}
	return out
}

// The limits for one node with a linked clone, a boot drive, one security group and a
// resized disk.
func TestLaunchAndDeleteRequests(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.NoPolling(), testenv.RealTime())
	// The first launch measures how long tasks take.
	p.Delete(p.Launched("measured", w.NodeClass))
	claim := p.Planned("pool-abc", w.NodeClass)
	launch := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
	w.Expect(len(withoutPolls(launch))).To(BeNumerically("<=", 12), "%v", names(launch))
	claim = w.Stored(claim)
	w.Expect(p.Inventory.Refresh(t.Context(), testenv.Region)).To(Succeed())
	deletion := w.RecordRequests(func() { p.Delete(claim) })
	w.Expect(len(withoutPolls(deletion))).To(BeNumerically("<=", 5), "%v", names(deletion))
}

// withoutPolls returns the requests other than polls of tasks, whose number depends on the load of
// the machine.
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
