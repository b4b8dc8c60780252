// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Whatever the Template's configuration contains, the change makes its clone a VM of ours
// that boots from its disk, or it fails.
func FuzzChange(f *testing.F) {
	for _, seed := range []map[string]string{
		ubuntuClone().Options,
		{"boot": "order=scsi0;scsi0;net0", "scsi0": "a:b,file=c", "net0": "virtio", "smbios1": "base64=1,serial=%", "vcpus": "1", "protection": "1"},
		{"bootdisk": "virtio1", "virtio1": "local:1/vm-1-disk-0.raw,size=NaN", "numa0": "cpus=0-99999999999", "hostpci0": "mapping=gpu", "cicustom": "user=a:b"},
		{"ide0": "none", "ide1": "none", "ide2": "none,media=cdrom", "ide3": "a:cloudinit", "sata0": "x"},
	} {
		raw, err := json.Marshal(seed)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, true)
		f.Add(raw, false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, iso bool) {
		var clone proxmox.VMConfig
		if json.Unmarshal(raw, &clone) != nil {
			return
		}
		want := desired()
		want.Devices = []string{"gpu"}
		if !iso {
			want.ISO, want.CloudInit = "", &CloudInit{User: "a", Snippets: map[string]string{"user": "local:snippets/a"}}
		}
		change, err := Change(clone, want)
		if err != nil {
			return
		}
		before, _ := clone.Drives().Boot()
		vm := apply(t, clone, change)
		if after, ok := vm.Drives().Boot(); !ok || after.Slot != before.Slot || after.VolumeID != before.VolumeID {
			t.Errorf("the boot disk was %+v, it is %+v", before, after)
		}
		if !IsConfigured(vm, want.VMID) || vm.SMBIOS().UUID != want.UUID || vm.Compute().MemoryMiB() != want.MemoryMiB || vm.Protected() {
			t.Errorf("the VM is not configured: %v", vm.Options)
		}
	})
}

func apply(t *testing.T, cfg proxmox.VMConfig, change proxmox.ConfigChange) proxmox.VMConfig {
	t.Helper()
	g := NewWithT(t)
	out := proxmox.VMConfig{Options: maps.Clone(cfg.Options)}
	for _, option := range change.Delete {
		_, both := change.Set[option]
		g.Expect(both).To(BeFalse(), "%s is set and deleted", option)
		delete(out.Options, option)
	}
	if slices.Sort(change.Delete); len(slices.Compact(slices.Clone(change.Delete))) != len(change.Delete) {
		t.Errorf("an option is deleted twice: %q", change.Delete)
	}
	maps.Copy(out.Options, change.Set)
	return out
}
