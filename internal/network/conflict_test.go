// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
)

func TestPoolsOnOneNetworkMustAgreeAboutItsSubnet(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mine, theirs, theirNIC string
		network                string // empty: they agree
	}{
		"the same subnet":          {"10.0.0.0/16", "10.0.0.0/16", "bridge=vmbr0", ""},
		"the same, other notation": {"10.0.0.0/16", "10.0.0.5/16", "bridge=vmbr0", ""},
		"apart":                    {"10.0.0.0/24", "10.0.1.0/24", "bridge=vmbr0", ""},
		"one inside the other":     {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr0", "bridge vmbr0"},
		"the other way round":      {"10.0.1.0/24", "10.0.0.0/16", "bridge=vmbr0", "bridge vmbr0"},
		"another bridge":           {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr1", ""},
		"another VLAN":             {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr0,tag=7", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			mine, err := network.NewLayout(class(pool4("net0", c.mine)), template())
			g.Expect(err).NotTo(HaveOccurred())
			theirs, err := network.NewLayout(class(pool4("net0", c.theirs)), template("net0", "virtio=BC:24:11:00:00:03,"+c.theirNIC))
			g.Expect(err).NotTo(HaveOccurred())
			found, disagree := mine.Conflicts(theirs)
			g.Expect(disagree).To(Equal(c.network != ""))
			g.Expect(found.Network).To(Equal(c.network))
		})
	}
}
