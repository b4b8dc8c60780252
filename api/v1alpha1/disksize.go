// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"
)

// DiskSize is the size of a disk as a whole number of G, T (powers of 1000) or Gi, Ti (powers of 1024).
//
// It is a string and not a resource.Quantity, because a Quantity keeps its value in fields that a hash does not see.
// +kubebuilder:validation:MaxLength=8
// +kubebuilder:validation:Pattern=`^\d+(T|G|Ti|Gi)$`
type DiskSize string

// Bytes returns the size in bytes. An empty size is 0: no wish.
func (s DiskSize) Bytes() (int64, error) {
	if s == "" {
		return 0, nil
	}

	quantity, err := resource.ParseQuantity(string(s))
	if err != nil {
		return 0, fmt.Errorf("parsing disk size %q (want a number of G, T, Gi or Ti, like 30G), %w", string(s), err)
	}

	// Value rounds and saturates silently; both would turn a typing error into a surprising disk.
	if bytes := quantity.Value(); bytes >= 0 && bytes < math.MaxInt64 {
		return bytes, nil
	}

	return 0, fmt.Errorf("parsing disk size %q (want a number of G, T, Gi or Ti, like 30G), out of range", string(s))
}
