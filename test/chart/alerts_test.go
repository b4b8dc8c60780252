// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os/exec"
	"testing"
)

// TestAlertRules evaluates the alerts on the series in testdata/alerts.yaml.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("SKIPPED: promtool is not in PATH; it is in Debian's package prometheus, and make prometheus downloads it")
	}
	output, err := exec.CommandContext(t.Context(), promtool, "test", "rules", "testdata/alerts.yaml").CombinedOutput()
	expect(t, err == nil, "%v\n%s", err, output)
}
