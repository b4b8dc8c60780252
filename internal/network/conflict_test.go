// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
)

func TestConflicts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		own, other, otherNIC string
		network              string // empty for no conflict
	}{
		"same_subnet":                {"10.0.0.0/16", "10.0.0.0/16", "bridge=vmbr0", ""},
		"same_subnet_other_notation": {"10.0.0.0/16", "10.0.0.5/16", "bridge=vmbr0", ""},
		"separate_subnets":           {"10.0.0.0/24", "10.0.1.0/24", "bridge=vmbr0", ""},
		"other_inside_own":           {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr0", "bridge vmbr0"},
		"own_inside_other":           {"10.0.1.0/24", "10.0.0.0/16", "bridge=vmbr0", "bridge vmbr0"},
		"other_bridge":               {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr1", ""},
		"other_VLAN":                 {"10.0.0.0/16", "10.0.1.0/24", "bridge=vmbr0,tag=7", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			own, err := network.NewLayout(class(pool4("net0", c.own)), template())
			g.Expect(err).NotTo(HaveOccurred())
			other, err := network.NewLayout(class(pool4("net0", c.other)), template("net0", "virtio=BC:24:11:00:00:03,"+c.otherNIC))
			g.Expect(err).NotTo(HaveOccurred())
			found, conflict := own.Conflicts(other)
			g.Expect(conflict).To(Equal(c.network != ""))
			g.Expect(found.Network).To(Equal(c.network))
		})
	}
}
