// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestCauseFromLog(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		log  []string
		want string
	}{
		"cause_before_last_line": {[]string{"bridge 'vmbr7' does not exist", "kvm: network script failed", "TASK ERROR: start failed: QEMU exited with code 1"}, "bridge 'vmbr7' does not exist"},
		"warning_before_cause":   {[]string{"kvm: -vga: warning: something old", "host NUMA node7 doesn't exist", "TASK ERROR: x"}, "host NUMA node7 doesn't exist"},
		"lock_before_cause":      {[]string{"trying to acquire lock...", "OK", "no such snippet", "TASK ERROR: no such snippet"}, "no such snippet"},
		"no_cause":               {[]string{"TASK ERROR: start failed: QEMU exited with code 1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(causeFromLog(test.log)).To(Equal(test.want))
		})
	}
}
