// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// DeriveMAC returns the MAC address of a Claim's interface: the cluster's prefix,
// followed by a hash of the Claim, so the boot data can contain it before the VM
// exists. Addresses that are taken are skipped.
func DeriveMAC(prefix, claimUID, slot string, taken map[string]bool) string {
	digits := strings.ToUpper(strings.NewReplacer(":", "", "-", "").Replace(prefix))
	for salt := 0; ; salt++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", claimUID, slot, salt))
		mac := formatMAC((digits + strings.ToUpper(hex.EncodeToString(sum[:])))[:12])
		// A few attempts find a free one unless the prefix leaves too few digits.
		if salt >= 64 || !taken[mac] {
			return mac
		}
	}
}

func formatMAC(digits string) string {
	parts := make([]string, 0, 6)
	for i := 0; i < 12; i += 2 {
		parts = append(parts, digits[i:i+2])
	}
	return strings.Join(parts, ":")
}
