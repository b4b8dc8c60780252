// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// newRetained returns an environment with a machine db-1, which has a retained disk of 10 GiB
// on the storage fast and another disk.
func newRetained(t *testing.T, storage func(*pvesim.Scenario)) *testenv.Env {
	t.Helper()
	w := testenv.NewFake(t, testenv.Scenario(storage))
	w.NodeClass.Spec.Machines = []v1alpha1.Machine{{Name: "db-1", Zone: "pve1"}}
	w.NodeClass.Spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "10Gi", Storage: "fast", Retain: true}, {Name: "scratch", Size: "1Gi", Storage: "fast"}}
	return w
}

// finish deletes a claim and its VM.
func finish(w *testenv.Env, p *testenv.Process, claim *karpv1.NodeClaim) {
	w.T.Helper()
	p.Delete(claim)
	w.Expect(w.Kube.Delete(w.T.Context(), claim)).To(Succeed())
}

// retainedVolumes returns the volumes of the storage fast that no VM owns.
func retainedVolumes(w *testenv.Env) []proxmox.Volume {
	w.T.Helper()
	volumes, err := w.Client.Volumes(w.T.Context(), "pve1", "fast", "images")
	w.Expect(err).NotTo(HaveOccurred())
	var out []proxmox.Volume
	for _, volume := range volumes {
		if volume.VMID == proxmox.RetainedVMID {
			out = append(out, volume)
		}
	}
	return out
}

// fastVolumes returns the number of all volumes of the storage fast.
func fastVolumes(w *testenv.Env) int {
	w.T.Helper()
	volumes, err := w.Client.Volumes(w.T.Context(), "pve1", "fast", "images")
	w.Expect(err).NotTo(HaveOccurred())
	return len(volumes)
}

func TestLaunchRetainedDisks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		storage func(*pvesim.Scenario)
		want    string
	}{
		"lvmthin": {withStorage("fast", 100*pvesim.GiB), `^fast:vm-999999999-[0-9a-z]+_db-1_data$`},
		"dir": {func(s *pvesim.Scenario) {
			s.Storages = append(s.Storages, pvesim.Storage{ID: "fast", Type: "dir", Content: []string{"images"}, Size: 100 * pvesim.GiB})
		}, `^fast:999999999/vm-999999999-[0-9a-z]+_db-1_data.raw$`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newRetained(t, c.storage)
			p := w.StartProcess()
			claim := p.Launched("pool-a", w.NodeClass)
			data, ok := w.VMConfig(w.Intent(claim)).Drives().Find("scsi1")
			w.Expect(ok).To(BeTrue())
			w.Expect(data.VolumeID).To(MatchRegexp(c.want))
			w.Expect(data.SizeBytes).To(Equal(int64(10 << 30)))
			w.Expect(data.Properties.Value("serial")).To(Equal("data"))
			finish(w, p, claim)
			w.ExpectNoOrphans()
			w.Expect(retainedVolumes(w)).To(HaveExactElements(HaveField("ID", data.VolumeID)))
			w.Expect(fastVolumes(w)).To(Equal(1), "the other disk is deleted")

			// The next VM of the machine has the same volume, which grows.
			w.NodeClass.Spec.Disks[0].Size = "20Gi"
			claim = p.Planned("pool-b", w.NodeClass)
			requests := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
			w.Expect(names(requests)).NotTo(ContainElement("POST /nodes/{node}/storage/{storage}/content"))
			after, _ := w.VMConfig(w.Intent(claim)).Drives().Find("scsi1")
			w.Expect(after.VolumeID).To(Equal(data.VolumeID))
			w.Expect(after.SizeBytes).To(Equal(int64(20 << 30)))
			finish(w, p, w.Stored(claim))
			w.Expect(retainedVolumes(w)).To(HaveExactElements(HaveField("SizeBytes", int64(20<<30))))
		})
	}
}

// An administrator deletes the VM in Proxmox.
func TestRetainedDiskOfVMDeletedByHand(t *testing.T) {
	t.Parallel()
	w := newRetained(t, withStorage("fast", 100*pvesim.GiB))
	p := w.StartProcess()
	claim := p.Launched("pool-a", w.NodeClass)
	in := w.Intent(claim)
	p.Delete(claim)
	w.Expect(retainedVolumes(w)).To(HaveLen(1))
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	claim = p.Launched("pool-b", w.NodeClass)
	w.DestroyByHand(in.Host, w.Intent(claim).VMID)
	w.Expect(retainedVolumes(w)).To(HaveLen(1))
}

// Two guests never write to the disk of a machine.
func TestLaunchRetainedDiskAttached(t *testing.T) {
	t.Parallel()
	w := newRetained(t, withStorage("fast", 100*pvesim.GiB))
	p := w.StartProcess()
	claim := p.Launched("pool-a", w.NodeClass)
	volume := w.Intent(claim).Retained["data"]
	finish(w, p, claim)
	w.CloneByHand("pve1", testenv.LastVMID, "rescue")
	w.Eventually(func(g Gomega) {
		g.Expect(p.Inventory.RefreshAll(t.Context())).To(Succeed())
		guest, _ := p.Inventory.View().Guest(testenv.Region, testenv.LastVMID)
		g.Expect(guest.Config).NotTo(BeNil())
	}).Should(Succeed())
	attach := proxmox.ConfigChange{Set: map[string]string{"scsi5": volume}}
	w.Expect(w.Client.UpdateVM(t.Context(), "pve1", testenv.LastVMID, attach)).To(Succeed()) // which no list shows
	claim = p.Planned("pool-b", w.NodeClass)
	w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(And(ContainSubstring("disk "+volume+" of machine db-1 is attached to VM"), ContainSubstring("detach it there"))))
}

// A retained disk that was moved in Proxmox has the VMID in its name. It is not deleted with the
// VM.
func TestDeleteMovedRetainedDisk(t *testing.T) {
	t.Parallel()
	w := newRetained(t, withStorage("fast", 100*pvesim.GiB))
	p := w.StartProcess()
	claim := p.Launched("pool-a", w.NodeClass)
	in := w.Intent(claim)
	config, err := w.Client.VMConfig(t.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	drives := config.Drives().All()
	drive := drives[slices.IndexFunc(drives, func(d proxmox.Drive) bool { return d.VolumeID == in.Retained["data"] })]
	drive.VolumeID = fmt.Sprintf("fast:vm-%d-disk-7", in.VMID)
	w.Expect(w.Client.CreateVolume(t.Context(), in.Host, proxmox.NewVolume{ID: drive.VolumeID, VMID: in.VMID, GiB: 10})).To(Succeed())
	w.Expect(w.Client.UpdateVM(t.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{drive.Slot: drive.Encode()}})).To(Succeed())
	_, err = p.Instances.Deleter.Delete(t.Context(), claim)
	w.Expect(err).To(MatchError(ContainSubstring("disk data of machine db-1 was moved to volume " + drive.VolumeID)))
	w.Expect(w.Client.VMStatus(t.Context(), in.Host, in.VMID)).To(HaveField("Running", true), "it was not stopped")
}

// Whenever the controller is killed while it launches or deletes the VM of a machine, the
// next one continues, and the machine has its one retained disk.
func TestRetainedDiskCrash(t *testing.T) {
	t.Parallel()
	w := newRetained(t, withStorage("fast", 100*pvesim.GiB))
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Planned("recorded", w.NodeClass)
	launch := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
	deletion := w.RecordRequests(func() { p.Delete(w.Stored(claim)) })
	for _, phase := range []struct {
		name     string
		requests []pvesim.Request
	}{{"launch", launch}, {"delete", deletion}} {
		for _, point := range testenv.CrashPoints(phase.requests) {
			t.Run(phase.name+"/"+point.Name, func(t *testing.T) {
				t.Parallel()
				w := newRetained(t, withStorage("fast", 100*pvesim.GiB))
				killed := w.StartProcess(testenv.NoPolling())
				claim := killed.Planned("pool-a", w.NodeClass)
				if phase.name == "launch" {
					err := killed.Instances.Launcher.Launch(testenv.KillAtRequest(w.T, w.Sim, point.Request, point.After), claim, w.NodeClass)
					w.EndCrash(err != nil)
				} else {
					w.Expect(killed.Launch(claim, w.NodeClass)).To(Succeed())
					deleted, err := killed.Instances.Deleter.Delete(testenv.KillAtRequest(w.T, w.Sim, point.Request, point.After), w.Stored(claim))
					w.EndCrash(!deleted || err != nil)
				}
				next := w.StartProcess()
				if phase.name == "launch" {
					w.Eventually(func() error { return next.Launch(w.Stored(claim), w.NodeClass) }).
						WithTimeout(30 * time.Second).WithPolling(100 * time.Millisecond).Should(Succeed())
					data, _ := w.VMConfig(w.Intent(claim)).Drives().Find("scsi1")
					w.Expect(data.VolumeID).To(Equal(w.Intent(claim).Retained["data"]))
				}
				volumes := retainedVolumes(w)
				w.Expect(volumes).To(HaveLen(1))
				finish(w, next, w.Stored(claim))
				w.ExpectNoOrphans()
				w.Expect(retainedVolumes(w)).To(Equal(volumes))
				w.Expect(fastVolumes(w)).To(Equal(1), "nothing else is left")
				second := next.Launched("pool-b", w.NodeClass)
				w.Expect(w.VMConfig(w.Intent(second)).Drives().All()).To(ContainElement(HaveField("VolumeID", volumes[0].ID)))
				w.Expect(fastVolumes(w)).To(Equal(2))
			})
		}
	}
}
