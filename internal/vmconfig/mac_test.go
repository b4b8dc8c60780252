// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"fmt"
	"net"
	"testing"

	. "github.com/onsi/gomega"
)

func TestDeriveMAC(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	free := map[string]bool{}
	a := DeriveMAC("BC:24:11", "claim", "net0", free)
	g.Expect(a).To(HavePrefix("BC:24:11:"))
	g.Expect(DeriveMAC("BC:24:11", "claim", "net0", free)).To(Equal(a))
	g.Expect(DeriveMAC("BC:24:11", "claim", "net1", free)).NotTo(Equal(a))
	g.Expect(DeriveMAC("02:00:00:1", "claim", "net0", free)).To(HavePrefix("02:00:00:1"))
	for _, prefix := range []string{"BC:24:11", "02:00:00:1", "aa:bb:cc:dd:ee"} {
		g.Expect(net.ParseMAC(DeriveMAC(prefix, "claim", "net0", free))).Error().NotTo(HaveOccurred(), prefix)
	}
}

func TestDeriveMACTaken(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	seen := map[string]bool{}
	for i := range 5000 {
		mac := DeriveMAC("BC:24:11", fmt.Sprint(i), "net0", seen)
		g.Expect(seen[mac]).To(BeFalse())
		seen[mac] = true
	}
}
