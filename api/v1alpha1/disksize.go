// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// DiskSize is the size of a disk as a whole number of G, T (powers of 1000) or Gi, Ti (powers of 1024).
//
// It is a string and not a resource.Quantity because a Quantity keeps its value in unexported fields, which are not hashed.
// +kubebuilder:validation:MaxLength=8
// +kubebuilder:validation:Pattern=`^\d+(T|G|Ti|Gi)$`
type DiskSize string

// Bytes returns the size in bytes, or 0 if the size is empty. It fails on any other format and on overflow.
func (s DiskSize) Bytes() (int64, error) {
	if s == "" {
		return 0, nil
	}

	for _, unit := range []struct {
		suffix string
		bytes  uint64
	}{
		{"Gi", 1 << 30}, {"Ti", 1 << 40}, {"G", 1e9}, {"T", 1e12},
	} {
		digits, ok := strings.CutSuffix(string(s), unit.suffix)
		if !ok {
			continue
		}

		if count, err := strconv.ParseUint(digits, 10, 64); err == nil && count <= math.MaxInt64/unit.bytes {
			return int64(count * unit.bytes), nil //nolint:gosec // the condition above keeps it in range
		}
	}

	return 0, fmt.Errorf("parsing disk size %q: want a number of G, T, Gi or Ti, like 30G", string(s))
}
