// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
)

// SetStorageFull makes allocations on a storage fail, or ends that.
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

// VolumeID is the id of a linked clone in configs: file systems, ZFS and RBD name the base in it.
func (s *Storage) VolumeID(v *Volume) string {
	if v.Base == "" || !s.Kind().linkedInName {
		return v.ID()
	}
	return v.Storage + ":" + v.Base + "/" + v.Name
}

// Storage is a storage definition of the cluster.
type Storage struct {
	ID       string
	Type     string
	Content  []string
	Shared   bool
	Hosts    []string // empty: all
	Size     int64
	BaseUsed int64
	Path     string
	Disabled bool
	Full     bool // a fault: nothing can be allocated
}

// Kind describes what a type of storage can do; it is data, so that no method asks for types by name.
type Kind struct {
	FileBased, thin, Template, linked, shared bool
	linkedInName                              bool // a linked clone's name contains its base
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

func (s *Storage) Kind() Kind { return kinds[s.Type] }

// KnownStorageType tells whether the simulator models a type of storage.
func KnownStorageType(typ string) bool { _, ok := kinds[typ]; return ok }

// AddStorage adds a storage definition.
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

// Storages lists the storages in the order in which they were added. The caller holds the mutex.
func (st *Store) Storages() []*Storage { return st.storages }

func (st *Store) Storage(id string) *Storage {
	for _, s := range st.storages {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// AvailableOn tells whether a host has the storage.
func (s *Storage) AvailableOn(host string) bool {
	return !s.Disabled && (len(s.Hosts) == 0 || slices.Contains(s.Hosts, host))
}

func (s *Storage) Holds(content string) bool { return slices.Contains(s.Content, content) }

// CheckStorage finds a storage that is enabled on a host; the texts are those of storage_check_enabled.
func (st *Store) CheckStorage(id, host string) (*Storage, error) {
	s := st.Storage(id)
	switch {
	case s == nil:
		return nil, api.Failf("storage '%s' does not exist", id)
	case s.Disabled:
		return nil, api.Failf("storage '%s' is disabled", id)
	case !s.AvailableOn(host):
		return nil, api.Failf("storage '%s' is not available on node '%s'", id, host)
	}
	return s, nil
}

// FilePath is the path of a volume on its host, for logs and error texts.
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

func (s *Storage) VolumeName(owner int, what, format string) string {
	if !s.Kind().FileBased {
		return fmt.Sprintf("vm-%d-%s", owner, what)
	}
	if format == "" {
		format = "raw"
	}
	return fmt.Sprintf("%d/vm-%d-%s.%s", owner, owner, what, format)
}
