// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// The list of described methods and the table of handlers must agree, for each version.
func TestEveryDescribedMethodIsServedAndTheOtherWayRound(t *testing.T) {
	t.Parallel()
	for release, version := range kernel.Versions {
		e, err := New(Config{Version: version})
		if err != nil {
			t.Fatalf("%s: %v", release, err)
		}
		defer e.Close()
		for _, name := range e.Schema.Names() {
			if !slices.Contains(e.Served(), name) {
				t.Errorf("%s: %s is described but not served", release, name)
			}
		}
		for _, name := range e.Served() {
			if e.Schema.Method(name) == nil && !slices.Contains(version.MissingMethods, name) {
				t.Errorf("%s: %s is served but not described", release, name)
			}
		}
	}
}
