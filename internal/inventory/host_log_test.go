// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

func TestLogHostChanges(t *testing.T) {
	t.Parallel()
	var lines []string
	c := newCluster("r", host("pve1", 16, 64), host("pve2", 16, 64))
	i := newInventoryWith(t, inventory.Options{Log: funcr.New(func(_, line string) {
		if strings.Contains(line, `"msg"="host is`) {
			lines = append(lines, line)
		}
	}, funcr.Options{})}, c)
	poll := func(online bool) {
		c.change(func() { c.resources.Hosts[1].Online = online })
		refresh(t, i)
	}
	for _, online := range []bool{true, false, false, true, true} {
		poll(online)
	}
	if len(lines) != 2 || !slices.ContainsFunc(lines[:1], isLine("host is offline")) || !slices.ContainsFunc(lines[1:], isLine("host is online again")) {
		t.Errorf("logged %q, want one line for each change", lines)
	}
}

func isLine(message string) func(string) bool {
	return func(line string) bool {
		return strings.Contains(line, `"msg"="`+message+`"`) && strings.Contains(line, `"region"="r" "host"="pve2"`)
	}
}
