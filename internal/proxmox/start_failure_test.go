// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// taskLog is a client that returns the same log for each task.
type taskLog struct {
	proxmox.TaskClient
	lines []string
	err   error
}

func (l taskLog) TaskLog(context.Context, proxmox.UPID) ([]string, error) { return l.lines, l.err }

func TestStartFailure(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		log  taskLog
		want string
	}{
		"cause_before_last_line": {taskLog{lines: []string{"bridge 'vmbr7' does not exist", "kvm: network script failed", "TASK ERROR: start failed: QEMU exited with code 1"}}, "bridge 'vmbr7' does not exist"},
		"warning_before_cause":   {taskLog{lines: []string{"kvm: -vga: warning: something old", "host NUMA node7 doesn't exist", "TASK ERROR: x"}}, "host NUMA node7 doesn't exist"},
		"lock_before_cause":      {taskLog{lines: []string{"trying to acquire lock...", "OK", "no such snippet", "TASK ERROR: no such snippet"}}, "no such snippet"},
		"no_cause":               {taskLog{lines: []string{"TASK ERROR: start failed: QEMU exited with code 1"}}, ""},
		"no_log":                 {taskLog{err: errors.New("forbidden")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			NewWithT(t).Expect(proxmox.StartFailure(t.Context(), test.log, "")).To(Equal(test.want))
		})
	}
}
