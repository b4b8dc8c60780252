// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qm

import (
	"strings"
	"testing"
)

// Valid devices are read again from what the simulator stores.
func FuzzDevices(f *testing.F) {
	f.Add("local-lvm:vm-100-disk-0,size=3G,ssd=1", "virtio=BC:24:11:00:00:01,bridge=vmbr0,tag=7", "cdn,order=scsi0;net0", "uuid=a,serial=eA==,base64=1")
	f.Add("file=none,volume=local:cloudinit", "model=e1000,macaddr=a:b:c:d:e:f", "order=", "=,,=a")
	f.Fuzz(func(t *testing.T, drive, net, boot, fields string) {
		if d, ok := ParseDrive("scsi0", drive); ok && !strings.Contains(d.File, "=") {
			if again, ok := ParseDrive("scsi0", d.String()); !ok || again.String() != d.String() || again.File != d.File || again.IsCDROM() != d.IsCDROM() {
				t.Errorf("%q was read as %q, then as %q", drive, d, again)
			}
		}
		if n := ParseNet(net); n.Model != "" && !strings.Contains(n.Model, "=") && strings.Count(n.MAC, ":") == 5 {
			if again := ParseNet(n.String()); again.String() != n.String() {
				t.Errorf("%q was read as %q, then as %q", net, n, again)
			}
		}
		_ = BootOrder(boot)
		if before, after := ParseFields(fields), ParseFields(WithNewUUID(fields)); len(after) < len(before) || after["uuid"] == before["uuid"] {
			t.Errorf("%q became %v", fields, after)
		}
	})
}

// Sizes are not negative and are read again from what the simulator prints.
func FuzzParseSize(f *testing.F) {
	for _, seed := range []string{"64M", "1.5G", "NaN", "Inf", "1e300T", "-1", "0x10", "T", "10"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		size, ok := ParseSize(text)
		if size < 0 {
			t.Fatalf("%q is %d", text, size)
		}
		if again, _ := ParseSize(FormatSize(size)); ok && size < 1<<53 && again != size {
			t.Errorf("%q was read as %d, then as %d", text, size, again)
		}
	})
}
