// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// withStorage adds a storage to all hosts.
func withStorage(id string, size pvesim.Size) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Storages = append(s.Storages, pvesim.Storage{ID: id, Type: "lvmthin", Content: []string{"images"}, Size: size})
	}
}

func TestLaunchDisks(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(withStorage("fast", 100*pvesim.GiB), withStorage("large", 1000*pvesim.GiB)))
	w.NodeClass.Spec.BootDevice.Storages = []string{"missing", "fast"}
	w.NodeClass.Spec.BootDevice.SSD = new(true)
	w.NodeClass.Spec.Disks = []v1alpha1.Disk{
		{Name: "data", Size: "80Gi", Storages: []string{"fast", "large"}, DiskOptions: v1alpha1.DiskOptions{Discard: new(true)}},
		{Name: "scratch", Size: "10Gi", Bus: v1alpha1.DiskBusVirtIO},
	}
	p := w.StartProcess(testenv.NoPolling())
	claim := p.Planned("default-a", w.NodeClass)
	reserved := p.Inventory.View().Reservations[string(claim.UID)].Disks
	w.Expect(reserved).To(HaveExactElements(And(HaveField("Storage", "large"), HaveField("Bytes", int64(80<<30))), HaveField("Storage", "fast")))
	requests := w.RecordRequests(func() { w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed()) })
	writes := 0
	for _, request := range requests {
		if request.Method == "PUT" && request.Template == "/nodes/{node}/qemu/{vmid}/config" {
			writes++
		}
	}
	w.Expect(writes).To(Equal(1), "%v", names(requests))
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
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
	for _, storage := range []string{"fast", "large"} {
		volumes, err := w.Client.Volumes(t.Context(), "pve1", storage, "images")
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(volumes).To(BeEmpty())
	}
}

// Other users can fill a storage after the launch was planned.
func TestLaunchDiskStorageFull(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Scenario(withStorage("fast", 100*pvesim.GiB)))
	w.NodeClass.Spec.Disks = []v1alpha1.Disk{{Name: "small", Size: "1Gi"}, {Name: "data", Size: "80Gi", Storage: "fast"}}
	p := w.StartProcess()
	claim := p.Planned("default-a", w.NodeClass)
	w.AddFault(pvesim.Fault{Method: "PUT", Path: "/nodes/*/qemu/*/config", Status: 500, Message: "lvcreate 'fast/vm-1-disk-1' error: no space left on device"})
	err := p.Launch(claim, w.NodeClass)
	final, ok := errors.AsType[*instance.LaunchError](err)
	w.Expect(ok).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(v1alpha1.EventStorageFull), "%v", err)
	w.Sim.ClearFaults()
	p.Delete(w.Stored(claim))
	w.ExpectNoOrphans()
}
