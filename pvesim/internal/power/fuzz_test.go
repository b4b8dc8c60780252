// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import "testing"

func FuzzParseNUMANodes(f *testing.F) {
	for _, seed := range []string{"0", "0-1", "0;2-3", "0-99999999999", "-1", "9223372036854775807-9223372036854775807", "1-0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, list string) {
		if nodes := parseNUMANodes(list); len(nodes) > 1<<10 {
			t.Errorf("%q has %d nodes", list, len(nodes))
		}
	})
}
