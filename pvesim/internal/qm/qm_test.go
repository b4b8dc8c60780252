// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qm

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"
)

func TestParseDevices(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"local-lvm:vm-100-disk-0,ssd=1,discard=on": "local-lvm:vm-100-disk-0,discard=on,ssd=1",
		"file=local:iso/x.iso,media=cdrom":         "local:iso/x.iso,media=cdrom",
		"none,media=cdrom":                         "none,media=cdrom",
		"none":                                     "none,media=cdrom",
		"local:9000/base-9000-disk-0.qcow2/101/vm-101-disk-0.qcow2,size=3G": "local:9000/base-9000-disk-0.qcow2/101/vm-101-disk-0.qcow2,size=3G",
	} {
		d, ok := ParseDrive("scsi0", in)
		NewWithT(t).Expect([]any{d.String(), ok}).To(Equal([]any{want, true}), "%s became", in)
	}
	for in, want := range map[string]string{
		"virtio=bc:24:11:00:00:01,tag=5,bridge=vmbr0":        "virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=5",
		"model=e1000,macaddr=BC:24:11:00:00:01,bridge=vmbr0": "e1000=BC:24:11:00:00:01,bridge=vmbr0",
	} {
		NewWithT(t).Expect(ParseNet(in).String()).To(Equal(want), "%s became", in)
	}
}

func TestDriveKinds(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][3]bool{ // CD, cloud-init, has a volume
		"local-lvm:vm-100-disk-0":                      {false, false, true},
		"local-lvm:vm-100-cloudinit,media=cdrom":       {true, true, true},
		"local:100/vm-100-cloudinit.qcow2,media=cdrom": {true, true, true},
		"local:cloudinit":                              {false, true, true},
		"local:iso/seed.iso,media=cdrom":               {true, false, true},
		"none,media=cdrom":                             {true, false, false},
		"/dev/sdb":                                     {false, false, false},
	} {
		d, _ := ParseDrive("ide2", in)
		NewWithT(t).Expect([3]bool{d.IsCDROM(), d.IsCloudInit(), d.HasVolume()}).To(Equal(want), "%v", in)
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, bytes := range map[string]int64{"64M": 64 << 20, "1G": 1 << 30, "1.5G": 3 << 29, "528K": 528 << 10, "10": 10, "2T": 2 << 40} {
		got, ok := ParseSize(text)
		NewWithT(t).Expect([]any{got, ok}).To(Equal([]any{bytes, true}), text)
	}
	for bytes, text := range map[int64]string{64 << 20: "64M", 1178599424: "1124M", 3 << 29: "1536M", 528 << 10: "528K", 7: "7"} {
		NewWithT(t).Expect(FormatSize(bytes)).To(Equal(text), "%d", bytes)
	}
	for _, bad := range []string{"", "G", "x", "-1G"} {
		_, ok := ParseSize(bad)
		NewWithT(t).Expect(ok).To(BeFalse(), "%q was accepted", bad)
	}
}

func TestNormalizeTags(t *testing.T) {
	t.Parallel()
	NewWithT(t).Expect(NormalizeTags("karpenter;Zone-A,foo bar foo")).To(Equal("bar;foo;karpenter;zone-a"))
}

func TestRandomIDs(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	const old = "00000000-0000-4000-8000-000000000001"
	g.Expect(ParseFields(WithNewUUID("uuid=" + old + ",sku=abc="))).To(And(HaveKeyWithValue("uuid", Not(Equal(old))), HaveKeyWithValue("sku", "abc=")))
	g.Expect(RandomMAC("")).To(MatchRegexp("^BC:24:11:.{8}$"))
}

func TestDigest(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := New(map[string]string{"cores": "2"})
	seen := map[string]bool{c.Digest(): true}
	for _, change := range []func(){
		func() { c.Options["memory"] = "512" }, func() { c.Pending["cores"] = "4" }, func() { c.Deleted["memory"] = true },
		func() { c.Snapshots = append(c.Snapshots, Snapshot{Name: "s", Options: maps.Clone(c.Options)}) },
	} {
		change()
		g.Expect(seen[c.Digest()]).To(BeFalse(), "a change did not change the digest")
		seen[c.Digest()] = true
	}
	g.Expect(c.Merged()).To(Equal(map[string]string{"cores": "4"}))
}
