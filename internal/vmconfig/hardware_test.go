// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"cmp"
	"fmt"
	"maps"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

func TestChangeHardware(t *testing.T) {
	t.Parallel()
	type options = map[string]string
	for name, test := range map[string]struct {
		inherited options
		hardware  v1alpha1.Hardware
		devices   []string
		want      options
		unset     []string
		err       string
	}{
		"nothing_set": {
			inherited: options{"cpuunits": "50", "watchdog": "ib700", "machine": "q35,viommu=intel"},
			want:      options{"balloon": "0"},
			unset: []string{
				"cpulimit", "cpuunits", "allow-ksm", "hotplug", "watchdog", "rng0", "tpmstate0", "usb0", "hostpci0", "machine", "scsihw", "agent", "startup",
			},
		},
		"CPU":             {hardware: v1alpha1.Hardware{CPULimit: new(int32(2)), CPUUnits: new(int32(50))}, want: options{"cpulimit": "2", "cpuunits": "50"}},
		"balloon":         {hardware: v1alpha1.Hardware{Balloon: new(int32(2048))}, want: options{"balloon": "2048", "memory": "6144"}},
		"balloon_limited": {hardware: v1alpha1.Hardware{Balloon: new(int32(8192))}, want: options{"balloon": "6144"}},
		"KSM":             {hardware: v1alpha1.Hardware{KSM: new(false)}, want: options{"allow-ksm": "0"}},
		"hotplug":         {hardware: v1alpha1.Hardware{Hotplug: []string{"disk", "usb"}}, want: options{"hotplug": "disk,usb"}},
		"no_hotplug":      {hardware: v1alpha1.Hardware{Hotplug: []string{"none"}}, want: options{"hotplug": "0"}},
		"watchdog":        {hardware: v1alpha1.Hardware{Watchdog: &v1alpha1.Watchdog{Model: "ib700"}}, want: options{"watchdog": "model=ib700,action=reset"}},
		"RNG": {
			hardware: v1alpha1.Hardware{RNG: &v1alpha1.RNG{MaxBytes: new(int32(0)), Period: new(int32(5))}},
			want:     options{"rng0": "source=/dev/urandom,max_bytes=0,period=5"},
		},
		"TPM": {hardware: v1alpha1.Hardware{TPM: &v1alpha1.TPMState{}}, want: options{"tpmstate0": "local-lvm:1,version=v2.0"}},
		"TPM_on_storage": {
			hardware: v1alpha1.Hardware{TPM: &v1alpha1.TPMState{Version: "v1.2", Storage: "ceph"}},
			want:     options{"tpmstate0": "ceph:1,version=v1.2"},
		},
		"TPM_of_template": {
			inherited: options{"tpmstate0": "local-lvm:vm-1-disk-1,size=4M,version=v2.0"},
			hardware:  v1alpha1.Hardware{TPM: &v1alpha1.TPMState{Version: "v2.0"}}, unset: []string{"tpmstate0"},
		},
		"TPM_of_other_version": {
			inherited: options{"tpmstate0": "local-lvm:vm-1-disk-1,size=4M"},
			hardware:  v1alpha1.Hardware{TPM: &v1alpha1.TPMState{Version: "v2.0"}},
			err:       "the template has a TPM of version v1.2, which cannot be changed, and spec.hardware.tpm.version is v2.0",
		},
		"USB": {
			inherited: options{"usb0": "spice", "usb1": "mapping=key"},
			hardware:  v1alpha1.Hardware{USB: []v1alpha1.USBDevice{{Mapping: "dongle", USB3: new(true)}, {Mapping: "key"}, {Mapping: "card"}}},
			want:      options{"usb2": "mapping=dongle,usb3=1", "usb3": "mapping=card"}, unset: []string{"usb0", "usb1", "usb4"},
		},
		"PCI": {
			hardware: v1alpha1.Hardware{Machine: "q35", PCI: []v1alpha1.PCIDevice{{Mapping: "gpu", XVGA: new(true)}, {Mapping: "vgpu", MDev: "nvidia-63", PCIe: new(false)}}},
			devices:  []string{"fpga", "gpu"},
			want: options{
				"machine": "type=q35", "hostpci0": "mapping=fpga,pcie=1", "hostpci1": "mapping=gpu,pcie=1,x-vga=1", "hostpci2": "mapping=vgpu,mdev=nvidia-63,pcie=0",
			},
		},
		"PCI_of_template": {
			inherited: options{"hostpci3": "mapping=gpu,rombar=0"},
			hardware:  v1alpha1.Hardware{PCI: []v1alpha1.PCIDevice{{Mapping: "gpu", XVGA: new(true)}}},
			devices:   []string{"gpu"},
			want:      options{"hostpci3": "mapping=gpu,rombar=0,x-vga=1"}, unset: []string{"hostpci0"},
		},
		"machine_keeps_properties": {
			inherited: options{"machine": "q35,viommu=virtio"},
			hardware:  v1alpha1.Hardware{Machine: "pc-q35-9.2"}, want: options{"machine": "type=pc-q35-9.2,viommu=virtio"},
		},
		// Guests find no boot drive on other SCSI controllers.
		"SCSI_controller": {hardware: v1alpha1.Hardware{SCSIController: "megasas"}, want: options{"scsihw": "megasas", "ide2": "local:iso/x.iso,media=cdrom"}, unset: []string{"scsi30"}},
		"agent_keeps_properties": {
			inherited: options{"agent": "1,fstrim_cloned_disks=1,freeze-fs=1"},
			hardware:  v1alpha1.Hardware{Agent: &v1alpha1.Agent{Enabled: true, Type: "virtio", FSFreezeOnBackup: new(false)}},
			want:      options{"agent": "enabled=1,fstrim_cloned_disks=1,freeze-fs-on-backup=0"},
		},
		"startup_keeps_properties": {
			inherited: options{"startup": "order=1,up=5"},
			hardware:  v1alpha1.Hardware{Startup: &v1alpha1.StartupOrder{Order: new(int32(3)), DownDelay: new(int32(60))}},
			want:      options{"startup": "order=3,up=5,down=60"},
		},
		"only_root_may_set": {
			hardware: v1alpha1.Hardware{ConfidentialComputing: &v1alpha1.ConfidentialComputing{AMDSEV: &v1alpha1.AMDSEV{Type: "snp"}}},
			unset:    []string{"amd-sev"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			clone, want := ubuntuClone(), desired()
			maps.Copy(clone.Options, test.inherited)
			before := maps.Clone(clone.Options)
			want.Hardware, want.Devices = test.hardware, test.devices
			change, err := Change(clone, want)
			g.Expect(clone.Options).To(Equal(before), "the clone must not be changed")
			g.Expect(fmt.Sprint(err)).To(HavePrefix(cmp.Or(test.err, "<nil>")))
			expectSet(g, change, test.want)
			for _, option := range test.unset {
				g.Expect(change.Set).NotTo(HaveKey(option))
				g.Expect(change.Delete).NotTo(ContainElement(option))
			}
		})
	}
}

func TestRootOptions(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.Expect(RootOptions(v1alpha1.Hardware{})).To(BeEmpty())
	confidential := v1alpha1.ConfidentialComputing{AMDSEV: &v1alpha1.AMDSEV{Type: "es", NoDebug: new(true), AllowSMT: new(false)}}
	g.Expect(RootOptions(v1alpha1.Hardware{ConfidentialComputing: &confidential})).To(HaveKeyWithValue("amd-sev", "type=es,no-debug=1,allow-smt=0"))
	confidential = v1alpha1.ConfidentialComputing{IntelTDX: &v1alpha1.IntelTDX{Attestation: true, VsockCID: new(int32(2))}}
	g.Expect(RootOptions(v1alpha1.Hardware{ConfidentialComputing: &confidential})).To(Equal(map[string]string{"intel-tdx": "type=tdx,attestation=1,vsock-cid=2"}))
}
