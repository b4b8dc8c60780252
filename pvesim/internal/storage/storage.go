// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// Storage is a storage definition of the cluster.
type Storage struct {
	ID       string
	Type     string
	Content  []string
	Shared   bool
	Hosts    []string // empty for all
	Size     int64
	BaseUsed int64
	Path     string
	Disabled bool
	Full     bool // a fault: allocations fail
}

// Kind describes the capabilities of a storage type.
type Kind struct {
	FileBased, thin, Template, linked, shared bool
	linkedInName                              bool // names of linked clones contain their base
	defaultPath                               string
}

var kinds = map[string]Kind{
	"dir":     {FileBased: true, thin: true, Template: true, linked: true, linkedInName: true, defaultPath: "/var/lib/vz"},
	"nfs":     {FileBased: true, thin: true, Template: true, linked: true, linkedInName: true, shared: true, defaultPath: "/mnt/pve/"},
	"cifs":    {FileBased: true, thin: true, Template: true, linked: true, linkedInName: true, shared: true, defaultPath: "/mnt/pve/"},
	"lvmthin": {thin: true, Template: true, linked: true},
	"lvm":     {},
	"zfspool": {thin: true, Template: true, linked: true, linkedInName: true},
	"rbd":     {thin: true, Template: true, linked: true, linkedInName: true, shared: true},
}

// Kind returns the capabilities of the storage.
func (s *Storage) Kind() Kind { return kinds[s.Type] }

// IsKnownType reports whether the simulator supports a storage type.
func IsKnownType(typ string) bool { _, ok := kinds[typ]; return ok }

// VolumeID returns the ID of a volume in configs. File systems, ZFS and RBD include the base of a linked clone.
func (s *Storage) VolumeID(v *Volume) string {
	if v.Base == "" || !s.Kind().linkedInName {
		return v.ID()
	}
	return v.Storage + ":" + v.Base + "/" + v.Name
}

// IsAvailableOn reports whether the storage is enabled on a host.
func (s *Storage) IsAvailableOn(host string) bool {
	return !s.Disabled && (len(s.Hosts) == 0 || slices.Contains(s.Hosts, host))
}

// HasContent reports whether the storage is configured for a content type.
func (s *Storage) HasContent(content string) bool { return slices.Contains(s.Content, content) }

// FilePath returns the path of a volume on its host, for logs and errors.
func (s *Storage) FilePath(name string) string {
	head, rest, _ := strings.Cut(name, "/")
	sub := map[string]string{"iso": "template/iso", "vztmpl": "template/cache", "import": "import", "snippets": "snippets", "backup": "dump"}
	switch {
	case s.Type == "rbd":
		return "rbd:" + s.ID + "/" + name
	case s.Type == "zfspool":
		return "/dev/zvol/" + s.ID + "/" + name
	case !s.Kind().FileBased:
		return "/dev/" + s.ID + "/" + name
	case sub[head] != "":
		return s.Path + "/" + sub[head] + "/" + rest
	default:
		return s.Path + "/images/" + name
	}
}

// VolumeName returns the name of a new volume, for example "100/vm-100-disk-0.qcow2".
func (s *Storage) VolumeName(owner int, what, format string) string {
	if !s.Kind().FileBased {
		return fmt.Sprintf("vm-%d-%s", owner, what)
	}
	if format == "" {
		format = "raw"
	}
	return fmt.Sprintf("%d/vm-%d-%s.%s", owner, owner, what, format)
}

// AddStorage adds a storage. The caller does not hold the mutex.
func (st *Store) AddStorage(s *Storage) {
	st.k.Mu.Lock()
	defer st.k.Mu.Unlock()
	k := s.Kind()
	if s.Path == "" && k.FileBased {
		s.Path = k.defaultPath
		if s.Type != "dir" {
			s.Path += s.ID
		} else if s.ID != "local" {
			s.Path = "/mnt/" + s.ID
		}
	}
	s.Shared = s.Shared || k.shared
	st.storages = append(st.storages, s)
}

// Storages returns all storages in the order of their definition.
func (st *Store) Storages() []*Storage { return st.storages }

// Storage returns a storage, or nil.
func (st *Store) Storage(id string) *Storage {
	for _, s := range st.storages {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// CheckStorage returns a storage. It fails with the texts of storage_check_enabled if the storage is not enabled on the
// host.
func (st *Store) CheckStorage(id, host string) (*Storage, error) {
	s := st.Storage(id)
	switch {
	case s == nil:
		return nil, api.Failf("storage '%s' does not exist", id)
	case s.Disabled:
		return nil, api.Failf("storage '%s' is disabled", id)
	case !s.IsAvailableOn(host):
		return nil, api.Failf("storage '%s' is not available on node '%s'", id, host)
	}
	return s, nil
}

// SetStorageFull sets whether allocations on a storage fail. The caller does not hold the mutex.
func (st *Store) SetStorageFull(id string, full bool) error {
	st.k.Mu.Lock()
	defer st.k.Mu.Unlock()
	s := st.Storage(id)
	if s == nil {
		return api.Failf("storage '%s' does not exist", id)
	}
	s.Full = full
	return nil
}
