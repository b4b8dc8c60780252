// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

// Usage sums up what a storage holds on a host.
func (st *Store) Usage(s *Storage, host string) (used int64) {
	used = s.BaseUsed
	for _, v := range st.volumes {
		if v.Storage == s.ID && (v.Host == "" || v.Host == host) {
			used += v.Used
		}
	}
	return min(used, s.Size)
}

// Usages sums up all storages in one pass over the volumes.
func (st *Store) Usages() map[string]int64 {
	out := map[string]int64{}
	for _, v := range st.volumes {
		out[v.Storage+"|"+v.Host] += v.Used
	}
	return out
}
