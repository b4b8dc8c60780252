// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestEmbeddedSchema(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("PVE_REFERENCE")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "reference")
	}
	served, err := os.ReadFile("served.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"8.4", "9.2"} {
		tree, err := os.ReadFile(filepath.Join(dir, "pve-schema-"+version+".json"))
		if err != nil {
			t.Skipf("published schema not available, set PVE_REFERENCE to its directory: %v", err)
		}
		want, err := Compact(version, tree, string(served))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile("methods-" + version + ".json")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(want, got) {
			t.Errorf("methods-%s.json does not match the published schema; run go run ./pvesim/internal/schema/gen", version)
		}
	}
}
