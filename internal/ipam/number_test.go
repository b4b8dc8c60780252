// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"math/big"
	"math/rand/v2"
	"testing"
)

func (n number) big() *big.Int {
	b := new(big.Int).SetUint64(n.hi)
	return b.Lsh(b, 64).Add(b, new(big.Int).SetUint64(n.lo))
}

func TestNumberArithmetic(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	draw := func() number {
		return number{random.Uint64() >> random.IntN(65), random.Uint64() >> random.IntN(65)}
	}
	wrap := new(big.Int).Lsh(big.NewInt(1), 128)
	for range 20000 {
		a, b := draw(), draw()
		sum := new(big.Int).Add(a.big(), b.big())
		if got := a.plus(b).big(); got.Cmp(sum.Mod(sum, wrap)) != 0 {
			t.Fatalf("%v + %v = %v", a, b, got)
		}
		difference := new(big.Int).Sub(a.big(), b.big())
		if got := a.minus(b).big(); got.Cmp(difference.Mod(difference, wrap)) != 0 {
			t.Fatalf("%v - %v = %v", a, b, got)
		}
		if got := a.less(b); got != (a.big().Cmp(b.big()) < 0) {
			t.Fatalf("%v < %v = %v", a, b, got)
		}
		if b.isZero() {
			continue
		}
		if got, want := a.modulo(b).big(), new(big.Int).Mod(a.big(), b.big()); got.Cmp(want) != 0 {
			t.Fatalf("%v mod %v = %v, want %v", a, b, got, want)
		}
	}
}
