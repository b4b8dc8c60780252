// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// New fails if a handler is not in the schema, so this checks the other direction.
func TestHandlersMatchSchema(t *testing.T) {
	t.Parallel()
	for release, version := range kernel.Versions {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			e, err := New(Config{Version: version})
			NewWithT(t).Expect(err).NotTo(HaveOccurred())
			defer e.Close()
			for _, name := range e.Schema.Names() {
				m := e.Schema.Method(name)
				if found, _, err := e.Find(m.Verb, m.Path); err != nil || found != m {
					t.Errorf("%s has no handler: found %v, %v", name, found, err)
				}
			}
		})
	}
}
