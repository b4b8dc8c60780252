// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"os/exec"
	"testing"
)

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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := bootsKernel(exec.Command("sh", "-c", tc.script)); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
	if (&Runtime{}).probeKVM() {
		t.Error("KVM works without a kernel to boot")
	}
}
