// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"strings"
	"testing"
)

// TestAnnotations checks that docs/architecture.md lists every annotation of the API.
func TestAnnotations(t *testing.T) {
	t.Parallel()
	page := read(t, "docs/architecture.md")
	found := find(`Annotation\w+ += Group \+ "/([a-z-]+)"`, read(t, "api/v1alpha1/labels.go"))
	if len(found) < 8 {
		t.Fatalf("found %d annotations, want at least 8", len(found))
	}
	for _, annotation := range found {
		if !strings.Contains(page, "`"+annotation[1]+"`") {
			t.Errorf("docs/architecture.md does not list the annotation %s", annotation[1])
		}
	}
}
