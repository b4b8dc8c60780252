// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// DeriveMAC makes the address of a Claim's interface: the Cluster's prefix, the
// rest from the Claim, so that the boot drive can name it before the VM exists.
// Addresses that taken knows are passed over.
func DeriveMAC(prefix, claimUID, slot string, taken func(string) bool) string {
	digits := strings.ToUpper(strings.NewReplacer(":", "", "-", "").Replace(prefix))
	for salt := 0; ; salt++ {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", claimUID, slot, salt))
		mac := formatMAC((digits + strings.ToUpper(hex.EncodeToString(sum[:])))[:12])
		// A handful of tries always finds one unless the prefix leaves no room.
		if salt >= 64 || !taken(mac) {
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
