// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"net/url"
	"testing"
)

// A list of keys is valid if and only if each of them is.
func FuzzCheckSSHKeys(f *testing.F) {
	const key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me@example.com"
	f.Add(key, "# comment")
	f.Add("ssh-rsa AAAA/////w==", "ssh-ed25519 AAAAC3NzaC1l")
	f.Fuzz(func(t *testing.T, one, other string) {
		valid := func(text string) bool { return CheckSSHKeys(url.PathEscape(text)) == nil }
		if both := valid(one + "\n" + other); both != (valid(one) && valid(other)) {
			t.Errorf("%q and %q together are valid: %t", one, other, both)
		}
	})
}
