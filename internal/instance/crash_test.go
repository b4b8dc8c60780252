// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// crashEnv is an Env with the VM of the first machine and the claim of the second one, whose VM has
// all that a launch creates: disks, one of them retained, a boot drive, firewall rules, and, unless
// ha is false, HA with a rule of both VMs.
type crashEnv struct {
	*testenv.Env
	killed        *testenv.Process
	first, second *karpv1.NodeClaim
	in            instance.Intent
	ha            bool
}

// runCrashes runs a test at all crash points, with HA and without.
func runCrashes(t *testing.T, test func(w crashEnv, crash *testenv.Crash)) {
	t.Helper()
	t.Parallel()
	for name, ha := range map[string]bool{"HA": true, "no_HA": false} {
		t.Run(name, func(t *testing.T) {
			testenv.RunCrashes(t, func(t *testing.T, crash *testenv.Crash) { test(newCrashEnv(t, ha), crash) })
		})
	}
}

func newCrashEnv(t *testing.T, ha bool) crashEnv {
	t.Helper()
	w := testenv.NewFake(t, testenv.Hosts(2), testenv.HA("9.2"), testenv.NoPolling(), testenv.Scenario(withStorage("fast", "lvmthin", 100*pvesim.GiB)))
	if ha {
		separate(w)
	}
	w.NodeClass.Spec.Machines = []v1alpha1.Machine{{Name: "db-1", Zone: "pve1"}, {Name: "db-2", Zone: "pve2"}}
	w.NodeClass.Spec.Disks = []v1alpha1.Disk{
		{Name: "data", Size: "10Gi", Storage: "fast", Retain: true}, {Name: "scratch", Size: "1Gi", Storage: "fast", Bus: v1alpha1.DiskBusVirtIO},
	}
	p := w.StartProcess()
	c := crashEnv{Env: w, killed: p, first: p.Launched("first", w.NodeClass), second: p.Planned("second", w.NodeClass), ha: ha}
	c.in = w.Intent(c.second)
	return c
}

func (c crashEnv) launch(ctx context.Context) error {
	return c.killed.Instances.Launcher.Launch(ctx, c.second, c.NodeClass)
}

// delete fails unless the VM is deleted.
func (c crashEnv) delete(ctx context.Context) error {
	deleted, err := c.killed.Instances.Deleter.Delete(ctx, c.Stored(c.second))
	if err == nil && !deleted {
		return errors.New("the deletion is in progress")
	}
	return err
}

// expectDeletes checks that another process deletes both VMs completely. Only the retained disk may be
// left of the second one.
func (c crashEnv) expectDeletes(p *testenv.Process) {
	c.T.Helper()
	p.Delete(c.Stored(c.second))
	c.Expect(c.Sim.HAResources()).To(HaveLen(map[bool]int{true: 1}[c.ha]), "the other VM stays in HA")
	c.Expect(c.Volumes("pve2", "fast", "images")).To(Or(BeEmpty(), HaveExactElements(HaveField("ID", c.in.Retained["data"]))))
	p.DeleteAll(c.first)
}

// Whenever the controller is killed during a launch, the next one completes it with
// exactly one VM: that of the intent.
func TestLaunchCrash(t *testing.T) {
	runCrashes(t, func(w crashEnv, crash *testenv.Crash) {
		crash.Run(w.Env, w.launch)
		next := w.StartProcess()
		next.MustLaunch(w.second, w.NodeClass)
		w.Expect(w.VMs()).To(ConsistOf(HaveField("VMID", w.Intent(w.first).VMID), HaveField("VMID", w.in.VMID)))
		w.Expect(w.Running(w.second)).To(BeTrue())
		w.Expect(w.VMConfig(w.in).Compute().Cores()).To(Equal(w.in.Cores))
		w.Expect(bootDisk(w.Env, w.in).SizeBytes).To(BeNumerically(">=", w.in.DiskBytes), "the disk was resized")
		w.Expect(w.Disks(w.in.Host, w.in.VMID)).To(HaveLen(1), "the boot disk")
		w.Expect(w.Volumes("pve2", "fast", "images")).To(ConsistOf(
			HaveField("ID", w.in.Retained["data"]), HaveField("VMID", w.in.VMID)), "the other disks exist once")
		w.Expect(dataDisk(w.Env, w.second).VolumeID).To(Equal(w.in.Retained["data"]))
		if w.ha {
			w.Expect(w.Sim.HARules()).To(haveRule(w.Env, w.first, w.second))
		}
		w.expectDeletes(next)
	})
}

// The controller is killed during the launch, and the claim is deleted.
func TestDeleteAfterLaunchCrash(t *testing.T) {
	runCrashes(t, func(w crashEnv, crash *testenv.Crash) {
		crash.Run(w.Env, w.launch)
		w.expectDeletes(w.StartProcess())
	})
}

// The next controller completes a delete that was killed.
func TestDeleteCrash(t *testing.T) {
	runCrashes(t, func(w crashEnv, crash *testenv.Crash) {
		w.killed.MustLaunch(w.second, w.NodeClass)
		crash.Run(w.Env, w.delete)
		w.Expect(w.Volumes("pve2", "fast", "images")).To(ContainElement(HaveField("VMID", proxmox.RetainedVMID)))
		w.expectDeletes(w.StartProcess())
	})
}
