// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package deletion

import (
	"fmt"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Only disks of the VM are deleted because of a log, and only those that it names.
func FuzzTaskLog(f *testing.F) {
	for _, seed := range []string{
		"  Logical volume \"vm-100-disk-0\" created.\n  Logical volume vm-100-disk-0 converted.",
		"Formatting '/var/lib/vz/images/100/vm-100-disk-0.qcow2', fmt=qcow2 size=1073741824",
		"clone base-9000-disk-0: base-9000-disk-0 snapname __base__ to vm-100-disk-0\nallocated target volume 'local-zfs:vm-100-cloudinit'",
		"Could not remove disk 'local-lvm:vm-100-disk-0', check manually: can't lock file '/var/lock/lvm' - got timeout",
		"Could not remove disk 'local:100/vm-100-disk-0.qcow2', check manually: vm-100-pvc-1 'local:x/vm-1000-disk-0' 'a:vm-100-disk-0' b'",
		"'local-lvm:base-9000-disk-0/vm-100-disk-0' 'rbd:subvol-100-disk-0' 'x:../vm-100-state-a b'",
	} {
		f.Add(seed, 100)
	}
	f.Fuzz(func(t *testing.T, log string, vmid int) {
		lines := strings.Split(log, "\n")
		for _, volume := range proxmox.LeakedDisks(lines, vmid) {
			if !strings.Contains(log, "'"+volume+"'") || !strings.Contains(volume, fmt.Sprintf("-%d-", vmid)) || strings.ContainsAny(volume, " \t\n'") {
				t.Errorf("%q of VM %d would be deleted because of %q", volume, vmid, log)
			}
		}
		for _, disk := range createdIn(lines) {
			if !strings.Contains(log, disk) || strings.ContainsAny(disk, "/: '\"\t\n") {
				t.Errorf("the disk %q was read from %q", disk, log)
			}
			if proxmox.IsDiskOf(disk, vmid) && !strings.HasPrefix(disk, fmt.Sprintf("vm-%d-", vmid)) {
				t.Errorf("%q counts as a disk of VM %d", disk, vmid)
			}
		}
	})
}
