// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"os/exec"
	"testing"

	. "github.com/onsi/gomega"
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
			NewWithT(t).Expect(bootsKernel(exec.Command("sh", "-c", tc.script))).To(Equal(tc.want))
		})
	}
	NewWithT(t).Expect((&Runtime{}).probeKVM()).To(BeFalse(), "KVM works without a kernel to boot")
}
