// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"math/big"
	"math/rand/v2"
	"testing"

	. "github.com/onsi/gomega"
)

func (n number) big() *big.Int {
	b := new(big.Int).SetUint64(n.hi)
	return b.Lsh(b, 64).Add(b, new(big.Int).SetUint64(n.lo))
}

func TestNumberArithmetic(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	random := rand.New(rand.NewPCG(1, 2))
	draw := func() number {
		return number{random.Uint64() >> random.IntN(65), random.Uint64() >> random.IntN(65)}
	}
	wrap := new(big.Int).Lsh(big.NewInt(1), 128)
	for range 20000 {
		a, b := draw(), draw()
		sum := new(big.Int).Add(a.big(), b.big())
		g.Expect(a.plus(b).big().Cmp(sum.Mod(sum, wrap))).To(BeZero(), "%v + %v", a, b)
		difference := new(big.Int).Sub(a.big(), b.big())
		g.Expect(a.minus(b).big().Cmp(difference.Mod(difference, wrap))).To(BeZero(), "%v - %v", a, b)
		g.Expect(a.less(b)).To(Equal(a.big().Cmp(b.big()) < 0))
		if b.isZero() {
			continue
		}
		g.Expect(a.modulo(b).big().Cmp(new(big.Int).Mod(a.big(), b.big()))).To(BeZero(), "%v mod %v", a, b)
	}
}
