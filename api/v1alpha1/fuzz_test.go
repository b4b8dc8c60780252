// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// A size is the quantity with the same text, or refused with an error that names it.
func FuzzDiskSize(f *testing.F) {
	for _, seed := range []string{"", "30G", "30Gi", "1T", "2Ti", "9223372036G", "9223372037G", "-1G", "1.5G", "+1G", "030Gi", "G"} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, text string) {
		bytes, err := v1alpha1.DiskSize(text).Bytes()
		if err != nil {
			if !strings.Contains(err.Error(), strconv.Quote(text)) || bytes != 0 {
				t.Errorf("%q: found %d and %v", text, bytes, err)
			}

			return
		}

		if text == "" && bytes == 0 {
			return
		}

		if quantity, err := resource.ParseQuantity(text); err != nil || quantity.Value() != bytes {
			t.Errorf("%q was read as %d, want %s (%v)", text, bytes, quantity.String(), err)
		}
	})
}
