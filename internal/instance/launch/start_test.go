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
		"8.4 hides it above its last word": {[]string{"bridge 'vmbr7' does not exist", "kvm: network script failed", "TASK ERROR: start failed: QEMU exited with code 1"}, "bridge 'vmbr7' does not exist"},
		"warnings are not causes":          {[]string{"kvm: -vga: warning: something old", "host NUMA node7 doesn't exist", "TASK ERROR: x"}, "host NUMA node7 doesn't exist"},
		"locks are not causes":             {[]string{"trying to acquire lock...", "OK", "no such snippet", "TASK ERROR: no such snippet"}, "no such snippet"},
		"nothing said":                     {[]string{"TASK ERROR: start failed: QEMU exited with code 1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(causeFromLog(test.log)).To(Equal(test.want))
		})
	}
}
