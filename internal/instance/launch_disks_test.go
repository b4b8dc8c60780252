// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withStorage adds a storage to all hosts.
func withStorage(id, storageType string, size pvesim.Size) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Storages = append(s.Storages, pvesim.Storage{ID: id, Type: storageType, Content: []string{"images"}, Size: size})
	}
}

func TestLaunchDisks(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Scenario(
		withStorage("fast", "lvmthin", 100*pvesim.GiB), withStorage("large", "lvmthin", 1000*pvesim.GiB),
	)).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.BootDevice.Storages = []string{"missing", "fast"}
		w.NodeClass.Spec.BootDevice.SSD = new(true)
		w.NodeClass.Spec.Disks = []v1alpha1.Disk{
			{Name: "data", Size: "80Gi", Storages: []string{"fast", "large"}, DiskOptions: v1alpha1.DiskOptions{Discard: new(true)}},
			{Name: "scratch", Size: "10Gi", Bus: v1alpha1.DiskBusVirtIO},
		}
		claim := p.Planned("default-a", w.NodeClass)
		reserved := p.Inventory.View().Reservations[string(claim.UID)].Disks
		w.Expect(reserved).To(HaveExactElements(And(HaveField("Storage", "large"), HaveField("Bytes", int64(80<<30))), HaveField("Storage", "fast")))
		w.Sim.ResetRequests()
		w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
		w.Expect(w.Sim.CountRequests("PUT", "/nodes/{node}/qemu/{vmid}/config")).To(Equal(1))
		drives := w.VMConfig(w.Intent(claim)).Drives()
		boot, _ := drives.Boot()
		w.Expect(boot.Storage).To(Equal("fast"))
		w.Expect(boot.Properties.Value("ssd")).To(Equal("1"))
		data, _ := drives.Find("scsi1")
		w.Expect(data).To(And(HaveField("Storage", "large"), HaveField("SizeBytes", int64(80<<30))))
		w.Expect(data.Properties.Value("serial")).To(Equal("data"))
		w.Expect(data.Properties.Value("discard")).To(Equal("on"))
		scratch, _ := drives.Find("virtio1")
		w.Expect(scratch).To(And(HaveField("Storage", "fast"), HaveField("SizeBytes", int64(10<<30))))
		p.DeleteAll(claim)
		w.Expect(append(w.Volumes("pve1", "fast", "images"), w.Volumes("pve1", "large", "images")...)).To(BeEmpty())
	})
}

// onFast is a Cluster with the storage fast.
var onFast = testenv.With(testenv.NoPolling(), testenv.Scenario(withStorage("fast", "lvmthin", 100*pvesim.GiB)))

// launchMachine launches the VM of the machine db-1, which has a retained disk of 10 GiB on the
// storage fast and another disk.
func launchMachine(w *testenv.Env, p *testenv.Process) *karpv1.NodeClaim {
	w.T.Helper()
	w.NodeClass.Spec.Machines = []v1alpha1.Machine{{Name: "db-1", Zone: "pve1"}}
	w.NodeClass.Spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "10Gi", Storage: "fast", Retain: true}, {Name: "scratch", Size: "1Gi", Storage: "fast"}}
	return p.Launched("pool-a", w.NodeClass)
}

// finish deletes a claim and its VM.
func finish(w *testenv.Env, p *testenv.Process, claim *karpv1.NodeClaim) {
	w.T.Helper()
	p.Delete(w.Stored(claim))
	w.Expect(w.Kube.Delete(w.Context(), claim)).To(Succeed())
}

// dataDisk returns the disk data of a claim's VM.
func dataDisk(w *testenv.Env, claim *karpv1.NodeClaim) proxmox.Drive {
	w.T.Helper()
	disk, ok := w.VMConfig(w.Intent(w.Stored(claim))).Drives().Find("scsi1")
	w.Expect(ok).To(BeTrue())
	w.Expect(disk.Properties.Value("serial")).To(Equal("data"))
	return disk
}

func TestLaunchRetainedDisks(t *testing.T) {
	t.Parallel()
	for storage, want := range map[string]string{
		"lvmthin": `^fast:vm-999999999-[0-9a-z]+_db-1_data$`, "dir": `^fast:999999999/vm-999999999-[0-9a-z]+_db-1_data.raw$`,
	} {
		onFast := testenv.With(testenv.NoPolling(), testenv.Scenario(withStorage("fast", storage, 100*pvesim.GiB)))
		onFast.Subtest(t, storage, func(w *testenv.Env, p *testenv.Process) {
			claim := launchMachine(w, p)
			data := dataDisk(w, claim)
			w.Expect(data).To(And(HaveField("VolumeID", MatchRegexp(want)), HaveField("SizeBytes", int64(10<<30))))
			finish(w, p, claim)
			w.ExpectNoOrphans()
			w.Expect(w.Volumes("pve1", "fast", "images")).To(HaveExactElements(HaveField("ID", data.VolumeID)), "the other disk is deleted")

			// The next VM of the machine has the same volume, which grows.
			w.NodeClass.Spec.Disks[0].Size = "20Gi"
			claim = p.Planned("pool-b", w.NodeClass)
			requests := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
			w.Expect(names(requests)).NotTo(ContainElement("POST /nodes/{node}/storage/{storage}/content"))
			w.Expect(dataDisk(w, claim)).To(And(HaveField("VolumeID", data.VolumeID), HaveField("SizeBytes", int64(20<<30))))
			finish(w, p, claim)
			w.Expect(w.Volumes("pve1", "fast", "images")).To(HaveExactElements(HaveField("SizeBytes", int64(20<<30))))
		})
	}
}

// An administrator deletes the VM in Proxmox.
func TestRetainedDiskOfVMDeletedByHand(t *testing.T) {
	onFast.Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := launchMachine(w, p)
		in, data := w.Intent(claim), dataDisk(w, claim)
		w.DestroyByHand(in.Host, in.VMID)
		w.Expect(w.Volumes("pve1", "fast", "images")).To(ContainElement(HaveField("ID", data.VolumeID)))
	})
}

// Two guests never write to the disk of a machine.
func TestLaunchRetainedDiskAttached(t *testing.T) {
	onFast.Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := launchMachine(w, p)
		volume := w.Intent(claim).Retained["data"]
		finish(w, p, claim)
		w.CloneByHand("pve1", testenv.LastVMID, "rescue")
		p.Refresh()
		guest, _ := p.Inventory.View().Guest(testenv.Region, testenv.LastVMID)
		w.Expect(guest.Config).NotTo(BeNil())
		attach := proxmox.ConfigChange{Set: map[string]string{"scsi5": volume}}
		w.Expect(w.Client.UpdateVM(w.Context(), "pve1", testenv.LastVMID, attach)).To(Succeed()) // which no list shows
		claim = p.Planned("pool-b", w.NodeClass)
		w.Expect(p.Launch(claim, w.NodeClass)).To(MatchError(And(
			ContainSubstring("disk "+volume+" of machine db-1 is attached to VM"), ContainSubstring("detach it there"))))
	})
}

// A retained disk that was moved in Proxmox has the VMID in its name. It is not deleted with the
// VM.
func TestDeleteMovedRetainedDisk(t *testing.T) {
	onFast.Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := launchMachine(w, p)
		in, drive := w.Intent(claim), dataDisk(w, claim)
		w.Expect(drive.VolumeID).To(Equal(in.Retained["data"]))
		drive.VolumeID = fmt.Sprintf("fast:vm-%d-disk-7", in.VMID)
		w.Expect(w.Client.CreateVolume(w.Context(), in.Host, proxmox.NewVolume{ID: drive.VolumeID, VMID: in.VMID, GiB: 10})).To(Succeed())
		w.Expect(w.Client.UpdateVM(w.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{drive.Slot: drive.Encode()}})).To(Succeed())
		_, err := p.Instances.Deleter.Delete(w.Context(), claim)
		w.Expect(err).To(MatchError(ContainSubstring("disk data of machine db-1 was moved to volume " + drive.VolumeID)))
		w.Expect(w.Running(claim)).To(BeTrue(), "it was not stopped")
	})
}
