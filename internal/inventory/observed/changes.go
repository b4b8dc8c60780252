// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"fmt"
	"maps"
	"strings"
)

// WithHostOffline returns the Snapshot as it would be if a Host lost power. It returns
// false if the Snapshot does not list the Host.
func (s *Snapshot) WithHostOffline(name string) (*Snapshot, bool) {
	host, ok := s.Hosts[name]
	if !ok {
		return s, false
	}
	host.Online = false
	host.OutOfServiceSince = since(true, host.OutOfServiceSince, s.Taken)
	host.OfflineSince = since(true, host.OfflineSince, s.Taken)
	out := *s
	out.Hosts = maps.Clone(s.Hosts)
	out.Hosts[name] = host
	return &out, true
}

// WithGuestOn returns the Snapshot as it would be with a guest on another Host. The guest must
// be a template, which uses no capacity.
func (s *Snapshot) WithGuestOn(vmid int, host string) *Snapshot {
	guest := s.Guests[vmid]
	guest.Host = host
	out := *s
	out.Guests = maps.Clone(s.Guests)
	out.Guests[vmid] = guest
	return &out
}

// MarshalText encodes the key of a map in JSON.
func (k StorageKey) MarshalText() ([]byte, error) { return []byte(k.Host + "/" + k.Storage), nil }

// UnmarshalText decodes the key of a map in JSON.
func (k *StorageKey) UnmarshalText(text []byte) error {
	var ok bool
	if k.Host, k.Storage, ok = strings.Cut(string(text), "/"); !ok {
		return fmt.Errorf("found storage %q, want HOST/STORAGE", text)
	}
	return nil
}
