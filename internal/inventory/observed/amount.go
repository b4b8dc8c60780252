// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

// Amount is a quantity of CPUs and memory.
type Amount struct {
	CPUs        int
	MemoryBytes int64
}

// Plus returns a + b.
func (a Amount) Plus(b Amount) Amount {
	return Amount{CPUs: a.CPUs + b.CPUs, MemoryBytes: a.MemoryBytes + b.MemoryBytes}
}

// Minus returns a - b, which may be negative.
func (a Amount) Minus(b Amount) Amount {
	return Amount{CPUs: a.CPUs - b.CPUs, MemoryBytes: a.MemoryBytes - b.MemoryBytes}
}

// AtLeast returns the maximum of each quantity.
func (a Amount) AtLeast(b Amount) Amount {
	return Amount{CPUs: max(a.CPUs, b.CPUs), MemoryBytes: max(a.MemoryBytes, b.MemoryBytes)}
}

// Covers reports whether a is at least b in both quantities.
func (a Amount) Covers(b Amount) bool {
	return a.CPUs >= b.CPUs && a.MemoryBytes >= b.MemoryBytes
}
