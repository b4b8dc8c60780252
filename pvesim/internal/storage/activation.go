// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// SetStorageActive sets whether a host can activate a storage. A disk, mount or server that is late after the power-on
// of a host is inactive. The caller does not hold the mutex.
func (st *Store) SetStorageActive(host, id string, active bool) error {
	st.k.Mu.Lock()
	defer st.k.Mu.Unlock()
	s := st.Storage(id)
	if s == nil || st.k.Host(host) == nil || !s.IsAvailableOn(host) {
		return api.Failf("storage '%s' is not available on node '%s'", id, host)
	}
	if s.inactive == nil {
		s.inactive = map[string]bool{}
	}
	s.inactive[host] = !active
	return nil
}

// IsActiveOn reports whether the storage is enabled and active on a host.
func (s *Storage) IsActiveOn(host string) bool { return s.IsAvailableOn(host) && !s.inactive[host] }

// checkActive returns an error if a storage is inactive on a host, with the text of the storage's plugin.
func (s *Storage) checkActive(host, name string) error {
	if !s.inactive[host] {
		return nil
	}
	text := fmt.Sprintf("storage '%s' is not online", s.ID)
	switch s.Type {
	case "dir":
		text = fmt.Sprintf("unable to activate storage '%s' - directory is expected to be a mount point but is not mounted: '%s'", s.ID, s.Path)
	case "lvm", "lvmthin":
		text = fmt.Sprintf("can't activate LV '%s':   Cannot process volume group %s", s.FilePath(name), s.ID)
	case "zfspool":
		text = fmt.Sprintf("could not activate storage '%s', zfs error: cannot import '%s': no such pool available", s.ID, s.ID)
	case "rbd":
		text = "rbd error: rbd: couldn't connect to the cluster!"
	}
	return api.Failf("%s", text)
}
