// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

func TestChangeShares(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	cfg, want := ubuntuClone(), desired()
	cfg.Options["virtiofs1"] = "dirid=inherited"
	want.Shares = []v1alpha1.Share{{Mapping: "data"}, {Mapping: "cache", Cache: "never"}}
	change, err := Change(cfg, want)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(change.Set).To(And(HaveKeyWithValue("virtiofs0", "dirid=data"), HaveKeyWithValue("virtiofs2", "dirid=cache,cache=never")))
	g.Expect(change.Set).NotTo(HaveKey("virtiofs1"), "the template's own stays")

	for range maxShares {
		want.Shares = append(want.Shares, v1alpha1.Share{Mapping: "more"})
	}
	g.Expect(Change(cfg, want)).Error().To(MatchError(ContainSubstring("share more has no virtiofs slot left")))
}
