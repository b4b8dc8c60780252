// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

func TestGenerate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var hosts []inventory.Amount
		for range 1 + rng.IntN(4) {
			hosts = append(hosts, inventory.Amount{CPUs: 2 * (1 + rng.IntN(64)), MemoryBytes: int64(4+rng.IntN(1000))*gib + rng.Int64N(gib)})
		}
		c := instancetype.Generate(hosts)
		for _, host := range hosts {
			for _, parts := range []int{1, 2} {
				if parts == 2 && host.MemoryBytes < 2*gib {
					continue
				}
				left := 1.0
				for _, typ := range c.Types() {
					if typ.CPUs*parts <= host.CPUs && typ.MemoryBytes*int64(parts) <= host.MemoryBytes {
						left = min(left, max(1-float64(typ.CPUs*parts)/float64(host.CPUs), 1-float64(typ.MemoryBytes*int64(parts))/float64(host.MemoryBytes)))
					}
				}
				// Less than a GiB of each part is lost to rounding.
				g.Expect(left).To(BeNumerically("<=", float64(int64(parts)*gib)/float64(host.MemoryBytes)),
					"seed %d: %d equal VMs leave %.0f %% of %+v unused", seed, parts, left*100, host)
			}
		}
		for _, typ := range c.Types() {
			fits := false
			for _, host := range hosts {
				fits = fits || (typ.CPUs <= host.CPUs && typ.MemoryBytes <= host.MemoryBytes)
			}
			g.Expect(fits).To(BeTrue(), "seed %d: %s fits on no Host of %v", seed, typ.Name, hosts)
		}
		data, err := c.Encode()
		g.Expect(err).NotTo(HaveOccurred())
		again, err := instancetype.Parse(data)
		g.Expect(err).NotTo(HaveOccurred(), "seed %d: the encoded catalog cannot be parsed", seed)
		for n, typ := range again.Types() {
			want := c.Types()[n]
			if typ.Extra = nil; !reflect.DeepEqual(typ, want) {
				t.Fatalf("seed %d: wrote %+v, read %+v", seed, want, typ)
			}
		}
	}
}
