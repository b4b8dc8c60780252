// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ipam"
)

func TestPickByKey(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p := pool(t, ipam.Spec{CIDR: "10.0.0.0/16"})
	free := func(netip.Addr) ipam.State { return ipam.Free }
	first, _ := p.Pick("claim-a", free)
	again, _ := p.Pick("claim-a", free)
	other, _ := p.Pick("claim-b", free)
	g.Expect(again).To(Equal(first))
	g.Expect(other).NotTo(Equal(first))

	next, _ := p.Pick("claim-a", state(map[netip.Addr]bool{first: true}))
	g.Expect(next).To(Equal(first.Next()))
	_, ok := ipam.Pool{}.Pick("key", free)
	g.Expect(ok).To(BeFalse(), "of the zero Pool")
}

func TestPickRecentlyReleased(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p := pool(t, ipam.Spec{CIDR: "10.0.0.0/29"})
	released := netip.MustParseAddr("10.0.0.3")
	taken := map[netip.Addr]bool{}
	pick := func(a netip.Addr) ipam.State {
		if a == released && !taken[a] {
			return ipam.RecentlyReleased
		}
		return state(taken)(a)
	}
	for range 5 {
		addr, ok := p.Pick("key", pick)
		g.Expect(ok).To(BeTrue())
		g.Expect(addr).NotTo(Equal(released))
		taken[addr] = true
	}
	addr, ok := p.Pick("key", pick)
	g.Expect(ok).To(BeTrue())
	g.Expect(addr).To(Equal(released))
	taken[addr] = true
	_, ok = p.Pick("key", pick)
	g.Expect(ok).To(BeFalse())
	g.Expect(p.Used(maps.Keys(taken))).To(Equal(6))
}

// TestPickRandomPools empties random pools and expects each address once.
func TestPickRandomPools(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		random := rand.New(rand.NewPCG(seed, 1))
		spec := randomSpec(random)
		p, err := ipam.NewPool(spec)
		if err != nil {
			continue // everything is excluded
		}
		taken, count := map[netip.Addr]bool{}, 0
		for {
			addr, ok := p.Pick(fmt.Sprint(random.Uint64()), state(taken))
			if !ok {
				break
			}
			whole := p.Subnet()
			broadcast := netip.MustParsePrefix(spec.CIDR).Bits() < 31 && !whole.Contains(addr.Next())
			if taken[addr] || !whole.Contains(addr) || addr == p.Gateway() || addr == whole.Addr() && whole.Bits() < 31 || broadcast {
				t.Fatalf("seed %d: %+v picked %s", seed, spec, addr)
			}
			taken[addr] = true
			count++
		}
		NewWithT(t).Expect(float64(count)).To(Equal(p.Size()), "seed %d: %+v picked", seed, spec)
	}
}

func randomSpec(random *rand.Rand) ipam.Spec {
	bits := 26 + random.IntN(7)
	prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(random.IntN(256)), byte(random.IntN(256))}), bits).Masked()
	within := func() netip.Addr {
		addr := prefix.Addr()
		for range random.IntN(1 << (32 - bits)) {
			addr = addr.Next()
		}
		return addr
	}
	randomRange := func() string {
		from, to := within(), within()
		if to.Less(from) {
			from, to = to, from
		}
		return fmt.Sprintf("%s-%s", from, to)
	}
	spec := ipam.Spec{CIDR: prefix.String()}
	for range random.IntN(4) {
		spec.Ranges = append(spec.Ranges, randomRange())
	}
	for range random.IntN(3) {
		spec.Exclude = append(spec.Exclude, within().String())
	}
	if random.IntN(2) == 0 {
		spec.Gateway = within().String()
	}
	return spec
}

func FuzzNewPool(f *testing.F) {
	f.Add("192.168.0.0/24", "192.168.0.10-192.168.0.20", "192.168.0.15", "192.168.0.1")
	f.Add("fd00::/64", "fd00::-fd00::ffff", "fd00::1/128", "fe80::1")
	f.Add("10.0.0.5/24", "", "", "10.0.0.1")
	f.Add("255.255.255.255/32", "255.255.255.255", "", "")
	f.Add("fd00::/32", "fd00::/32", "fd00:0:ffff::/48", "")
	f.Fuzz(func(t *testing.T, cidr, within, exclude, gateway string) {
		spec := ipam.Spec{CIDR: cidr, Gateway: gateway}
		if within != "" {
			spec.Ranges = []string{within}
		}
		if exclude != "" {
			spec.Exclude = []string{exclude}
		}
		p, err := ipam.NewPool(spec)
		if err != nil {
			return
		}
		addr, ok := p.Pick("key", func(netip.Addr) ipam.State { return ipam.Free })
		switch {
		case !ok || p.Size() < 1:
			t.Fatalf("%+v was accepted without addresses", spec)
		case !p.Contains(addr) || !p.Subnet().Contains(addr) || addr == p.Gateway():
			t.Fatalf("%+v picked %s", spec, addr)
		}
	})
}
