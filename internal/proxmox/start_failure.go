// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"slices"
	"strings"
)

// StartFailure returns why the start of a VM failed according to the task's log, or "". Up to
// PVE 8.4 its status is only "QEMU exited with code 1".
func StartFailure(ctx context.Context, c TaskClient, task UPID) string {
	lines, err := c.TaskLog(ctx, task)
	if err != nil {
		return ""
	}
	return causeFromLog(lines)
}

// causeFromLog returns the first error in the log of a failed start; those after it are
// usually its consequences.
func causeFromLog(lines []string) string {
	var causes []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		switch {
		case line == "", strings.HasPrefix(line, "TASK "), strings.HasPrefix(line, "trying to acquire lock"), line == "OK":
		case strings.HasPrefix(line, "kvm: ") && strings.Contains(line, "warning"):
		default:
			causes = append(causes, strings.TrimPrefix(line, "kvm: "))
		}
	}
	if i := slices.IndexFunc(causes, func(line string) bool { return strings.HasPrefix(line, "start failed: QEMU exited") }); i >= 0 {
		causes = slices.Delete(causes, i, i+1)
	}
	if len(causes) == 0 {
		return ""
	}
	return causes[0]
}
