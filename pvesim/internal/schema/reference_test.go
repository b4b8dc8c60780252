// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestEmbeddedSchema(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	dir := os.Getenv("PVE_REFERENCE")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "..", "shared", "reference")
	}
	served, err := os.ReadFile("served.txt")
	g.Expect(err).NotTo(HaveOccurred())
	for _, version := range []string{"8.4", "9.2"} {
		tree, err := os.ReadFile(filepath.Join(dir, "pve-schema-"+version+".json"))
		if err != nil {
			t.Skipf("published schema not available, set PVE_REFERENCE to its directory: %v", err)
		}
		want, err := Compact(version, tree, string(served))
		g.Expect(err).NotTo(HaveOccurred())
		got, err := os.ReadFile("methods-" + version + ".json")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(got).To(Equal(want), "methods-%s.json does not match the published schema; run go run ./pvesim/internal/schema/gen", version)
	}
}
