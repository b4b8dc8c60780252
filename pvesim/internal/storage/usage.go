// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

// usage returns the used bytes of a storage on a host.
func (st *Store) usage(s *Storage, host string) (used int64) {
	used = s.BaseUsed
	for _, v := range st.volumes {
		if v.Storage == s.ID && (v.Host == "" || v.Host == host) {
			used += v.Used
		}
	}
	return min(used, s.Size)
}

// Usages returns the used bytes of volumes by storage and host, "local|pve1". The host of shared storages is empty.
func (st *Store) Usages() map[string]int64 {
	out := map[string]int64{}
	for _, v := range st.volumes {
		out[v.Storage+"|"+v.Host] += v.Used
	}
	return out
}
