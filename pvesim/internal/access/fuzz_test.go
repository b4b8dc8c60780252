// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"testing"
	"time"
)

// Only what the simulator issued is accepted.
func FuzzLogin(f *testing.F) {
	s := NewSigner()
	now := time.Unix(1_790_000_000, 0)
	ticket, csrf := s.Ticket("root@pam", now)
	f.Add(ticket, csrf)
	f.Add("PVE:root@pam:6AB13B80::", "6AB13B80:")
	f.Add("PVE:root@pam:-FFFFFFFFFFFFFFF::x", "7FFFFFFFFFFFFFFF:x")
	f.Fuzz(func(t *testing.T, text, token string) {
		if user, err := s.User(text, now); err == nil && (user != "root@pam" || text != ticket) {
			t.Errorf("the ticket %q of %s was accepted", text, user)
		}
		if s.CheckCSRF(token, "root@pam", now) == nil && token != csrf {
			t.Errorf("the token %q was accepted", token)
		}
		var store Store
		if _, err := store.CheckToken(text, now); err == nil {
			t.Errorf("the API token %q was accepted", text)
		}
	})
}
