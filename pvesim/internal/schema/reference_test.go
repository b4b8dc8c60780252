// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The embedded description must be what the published schema of each version says about the served methods.
func TestTheEmbeddedSchemaAgreesWithThePublishedOne(t *testing.T) {
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
			t.Skipf("NOT CHECKED against Proxmox's published schema: %v; set PVE_REFERENCE to the directory that has it", err)
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
			t.Errorf("methods-%s.json is not what the published schema says; run go run ./pvesim/internal/schema/gen", version)
		}
	}
}
