// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"maps"
	"os/exec"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// vm returns hardware with a few common options and those of a test.
func vm(options map[string]string) *hardware {
	all := map[string]string{
		"memory": "2048", "cores": "2", "scsihw": "virtio-scsi-pci", "boot": "order=scsi0;net0", "agent": "1", "vga": "serial0",
		"scsi0": "local-lvm:vm-100-disk-0,size=8G", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
	}
	maps.Copy(all, options)
	return &hardware{
		name: "node-1", options: all, smbios: map[string]string{"uuid": "11111111-2222-3333-4444-555555555555", "serial": "h=node-1;s=a,b"},
		disks: map[string]string{"scsi0": "/d/scsi0", "virtio0": "/d/virtio0", "sata0": "/d/sata0", "ide0": "/d/ide0", "scsi1": "/d/scsi1"},
		media: map[string]string{"ide2": "/m/ide2.iso", "scsi1": "/m/scsi1.iso", "ide1": "/m/ide1.iso"}, socket: "/s/console.sock", console: "/c/console.log",
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()
	cd := func(slot, rest string) map[string]string {
		return map[string]string{slot: "local:iso/a.iso,media=cdrom" + rest}
	}
	for name, tc := range map[string]struct {
		options map[string]string
		want    []string
		absent  []string
	}{
		"pc": {
			want: []string{
				"-machine type=pc", "-m 2048", "-smp 2,sockets=1,cores=2,maxcpus=2", "-accel tcg,thread=multi,tb-size=512 -cpu max",
				"-smbios type=1,uuid=11111111-2222-3333-4444-555555555555,serial=h=node-1;s=a,,b",
				"-device virtio-scsi-pci,id=scsihw0,bus=pci.0,addr=0x5",
				"-drive if=none,id=drive-scsi0,format=qcow2,cache=unsafe,discard=unmap,file=/d/scsi0",
				"-device scsi-hd,bus=scsihw0.0,channel=0,scsi-id=0,lun=0,drive=drive-scsi0,id=scsi0,bootindex=100",
				"-netdev user,id=net0", "-device virtio-net-pci,id=net0,mac=BC:24:11:00:00:01,netdev=net0,bus=pci.0,addr=0x12,romfile=,bootindex=101",
				"name=org.qemu.guest_agent.0", "virtio-balloon-pci",
			},
			absent: []string{"pcie", "pflash", "VGA", "rng", "kernel"},
		},
		"q35":            {map[string]string{"machine": "pc-q35-9.0"}, []string{"-machine type=q35", "-device pci-bridge,id=pci.0,chassis_nr=1,bus=pcidmi,addr=0x1"}, nil},
		"single":         {map[string]string{"scsihw": "virtio-scsi-single"}, []string{"-device virtio-scsi-pci,id=virtioscsi0,bus=pci.3,addr=0x1", "-device scsi-hd,bus=virtioscsi0.0,channel=0,scsi-id=0,lun=0"}, []string{"scsihw0"}},
		"lsi":            {map[string]string{"scsihw": ""}, []string{"-device lsi,id=scsihw0,bus=pci.0,addr=0x5", "-device scsi-hd,bus=scsihw0.0,scsi-id=0,"}, nil},
		"virtio disk":    {map[string]string{"virtio0": "local-lvm:vm-100-disk-1,size=8G"}, []string{"-device virtio-blk-pci,bus=pci.0,addr=0xa,drive=drive-virtio0,id=virtio0"}, nil},
		"sata disk":      {map[string]string{"sata0": "local-lvm:vm-100-disk-1,size=8G,ssd=1,serial=a1"}, []string{"-device ahci,id=ahci0,multifunction=on,bus=pci.0,addr=0x7", "-device ide-hd,bus=ahci0.0,drive=drive-sata0,id=sata0,serial=a1,rotation_rate=1"}, nil},
		"ide2 pc":        {cd("ide2", ""), []string{"-drive if=none,id=drive-ide2,media=cdrom,readonly=on,format=raw,file=/m/ide2.iso", "-device ide-cd,bus=ide.1,unit=0,drive=drive-ide2,id=ide2"}, nil},
		"ide1 pc":        {cd("ide1", ""), []string{"-device ide-cd,bus=ide.0,unit=1,"}, nil},
		"ide2 q35":       {map[string]string{"machine": "q35", "ide2": "local:iso/a.iso,media=cdrom"}, []string{"-device ide-cd,bus=ide.1,unit=0,"}, nil},
		"ide1 q35":       {map[string]string{"machine": "q35", "ide1": "local:iso/a.iso,media=cdrom"}, []string{"-device ide-cd,bus=ide.2,unit=0,"}, nil},
		"scsi1 CD-ROM":   {cd("scsi1", ""), []string{"-device scsi-cd,bus=scsihw0.0,channel=0,scsi-id=0,lun=1,drive=drive-scsi1,id=scsi1"}, []string{"file=/d/scsi1"}},
		"empty drive":    {map[string]string{"ide3": "none,media=cdrom"}, []string{"-drive if=none,id=drive-ide3,media=cdrom,readonly=on -device ide-cd,bus=ide.1,unit=1"}, nil},
		"no boot order":  {map[string]string{"boot": ""}, []string{"id=scsi0,bootindex=100"}, nil},
		"e1000, MTU":     {map[string]string{"net0": "e1000=BC:24:11:00:00:01,bridge=vmbr0,mtu=9000"}, []string{"-device e1000,id=net0,"}, []string{"host_mtu"}},
		"virtio MTU":     {map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,mtu=9000"}, []string{",host_mtu=9000"}, nil},
		"vcpus":          {map[string]string{"sockets": "2", "vcpus": "3"}, []string{"-smp 3,sockets=2,cores=2,maxcpus=4"}, nil},
		"no agent":       {map[string]string{"agent": "0"}, nil, []string{"guest_agent"}},
		"display":        {map[string]string{"vga": "std"}, []string{"-device VGA,id=vga,bus=pci.0,addr=0x2"}, nil},
		"random numbers": {map[string]string{"rng0": "source=/dev/urandom"}, []string{"-object rng-random,filename=/dev/urandom,id=rng0 -device virtio-rng-pci,rng=rng0"}, nil},
		"9p":             {map[string]string{"args": "-virtfs local,path=/d,mount_tag=t,security_model=mapped-xattr,id=fs0 -device foo"}, []string{"-virtfs local,path=/d,mount_tag=t,security_model=mapped-xattr,id=fs0"}, []string{"foo"}},
		"no balloon":     {map[string]string{"balloon": "0"}, nil, []string{"balloon"}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) { checkArguments(t, vm(tc.options), tc.want, tc.absent) })
	}
}

func checkArguments(t *testing.T, h *hardware, want, absent []string) {
	t.Helper()
	line := strings.Join(h.arguments(), " ")
	for _, s := range want {
		NewWithT(t).Expect(line).To(ContainSubstring(s))
	}
	for _, s := range absent {
		NewWithT(t).Expect(line).NotTo(ContainSubstring(s))
	}
}

func TestArgumentsFiles(t *testing.T) {
	t.Parallel()
	h := vm(map[string]string{"bios": "ovmf", "machine": "q35", "efidisk0": "local-lvm:vm-100-disk-1,efitype=4m,pre-enrolled-keys=1"})
	h.code, h.vars, h.kvm = "/f/code.fd", "/f/vars.fd", true
	h.firmware = map[string]string{"opt/com.coreos/config": "/f/fw,0"}
	h.kernel = directKernel{path: "/k/vmlinuz", initrd: "/k/initrd", args: "root=LABEL=root console=ttyS0"}
	h.shares = []share{{"data", "/s/share0.sock"}}
	h.sockets = map[string]string{"net0": "/n/vmbr0"}
	checkArguments(t, h, []string{
		"-machine type=q35,smm=on", "-global driver=cfi.pflash01,property=secure,value=on", "-accel kvm -cpu host",
		"-drive if=pflash,unit=0,format=raw,readonly=on,file=/f/code.fd -drive if=pflash,unit=1,format=raw,file=/f/vars.fd",
		"-fw_cfg name=opt/com.coreos/config,file=/f/fw,,0", "-kernel /k/vmlinuz -append root=LABEL=root console=ttyS0 -initrd /k/initrd",
		"-object memory-backend-memfd,id=ram,size=2048M,share=on -machine memory-backend=ram",
		"-chardev socket,id=virtiofs0,path=/s/share0.sock -device vhost-user-fs-pci,queue-size=1024,chardev=virtiofs0,tag=data",
		"-netdev stream,id=net0,server=off,addr.type=unix,addr.path=/n/vmbr0",
		"-chardev socket,id=serial0,path=/s/console.sock,server=on,wait=off,logfile=/c/console.log,logappend=on",
	}, nil)
	NewWithT(t).Expect(h.arguments()).NotTo(ContainElement(""), "empty argument")
}

func TestProbeKVM(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script string
		want   bool
	}{
		"boots":          {"echo 'Kernel panic - not syncing: VFS: Unable to mount root fs'; exec sleep 60", true},
		"boots_and_ends": {"printf 'Kernel pa'; printf 'nic'", true},
		"no_KVM":         {"echo 'Could not access KVM kernel module' >&2; exit 1", false},
	} {
		NewWithT(t).Expect(bootsKernel(exec.Command("sh", "-c", tc.script))).To(Equal(tc.want), name)
	}
	NewWithT(t).Expect((&Runtime{}).probeKVM()).To(BeFalse(), "KVM works without a kernel to boot")
}
