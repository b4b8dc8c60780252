// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storage holds the storages of the cluster and their volumes, and serves their API.
package storage

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// Store holds storages and volumes. The caller of a method holds the mutex of the kernel unless its comment states
// otherwise.
type Store struct {
	k        *kernel.Kernel
	latency  map[string]Latency // by storage type
	storages []*Storage
	volumes  map[string]*Volume // by volumeKey
	blobs    map[[32]byte]*blob
	files    Files
	web      *http.Client // for downloads
}

// Files configure what is stored in files and not in memory.
type Files struct {
	// Dir is the directory for disk images and the disks of guests; empty: images are in memory, disks have no files.
	Dir string
	// TemplateImage is the content of the boot disks of the templates that exist from the start.
	TemplateImage string
}

// New returns an empty store. Types that are missing in latency have the latencies of their default profile. If web is nil,
// images are downloaded over the network.
func New(k *kernel.Kernel, latency map[string]Latency, files Files, web http.RoundTripper) *Store {
	if web == nil {
		web = newWebTransport()
	}
	return &Store{k: k, latency: latency, volumes: map[string]*Volume{}, blobs: map[[32]byte]*blob{}, files: files, web: &http.Client{Transport: web}}
}

// newWebTransport returns a transport that keeps no connection open and shares nothing with other transports: simulators in
// different bubbles of testing/synctest cannot share goroutines.
func newWebTransport() http.RoundTripper {
	dialer := net.Dialer{Resolver: &net.Resolver{}}
	return &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, DisableKeepAlives: true}
}

// Dir returns the directory for the disks of guests, or "".
func (st *Store) Dir() string { return st.files.Dir }

// Handlers by kind of object.
type (
	definitions struct{ *Store }
	contents    struct {
		*Store
		allocator *Allocator
	}
	files struct{ *Store }
)

// Routes returns the handlers of storages by method.
func (st *Store) Routes() map[string]api.Handler {
	d, ct, f := definitions{st}, contents{st, NewAllocator(st)}, files{st}
	const storage = "/nodes/{node}/storage"
	return map[string]api.Handler{
		"GET /storage":                                      kernel.Read(st.k, d.getDefinitions),
		"POST /storage":                                     d.postDefinition,
		"GET /storage/{storage}":                            kernel.Read(st.k, d.getDefinition),
		"PUT /storage/{storage}":                            kernel.Read(st.k, d.putDefinition),
		"DELETE /storage/{storage}":                         kernel.Change(st.k, d.deleteDefinition),
		"GET " + storage:                                    kernel.Read(st.k, d.getStorages),
		"GET " + storage + "/{storage}":                     api.Index("subdir", "content", "status", "upload", "download-url"),
		"GET " + storage + "/{storage}/status":              kernel.Read(st.k, d.getStorageStatus),
		"GET " + storage + "/{storage}/content":             kernel.Read(st.k, ct.getContent),
		"POST " + storage + "/{storage}/content":            ct.postContent,
		"GET " + storage + "/{storage}/content/{volume}":    kernel.Read(st.k, ct.getVolume),
		"DELETE " + storage + "/{storage}/content/{volume}": ct.deleteVolume,
		"POST " + storage + "/{storage}/upload":             f.postUpload,
		"POST " + storage + "/{storage}/download-url":       f.postDownload,
		"GET /nodes/{node}/query-url-metadata":              f.getURLMetadata,
	}
}

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
	Server   string
	Disabled bool
	Full     bool // a fault: allocations fail
	mkdir    string

	inactive map[string]bool // by host
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

// Latency is how long the operations of a storage take.
type Latency struct {
	Alloc, LinkedClone, Free, Snapshot time.Duration
	// CopyBytesPerSecond is the bandwidth of full clones and imports.
	CopyBytesPerSecond int64
}

// Profiles are latencies of typical storages, measured on running hosts and rounded.
var Profiles = map[string]Latency{
	"nvme-lvmthin": {
		Alloc: 120 * time.Millisecond, LinkedClone: 180 * time.Millisecond, Free: 150 * time.Millisecond,
		Snapshot: 150 * time.Millisecond, CopyBytesPerSecond: 900 << 20,
	},
	"zfs": {
		Alloc: 90 * time.Millisecond, LinkedClone: 110 * time.Millisecond, Free: 400 * time.Millisecond,
		Snapshot: 80 * time.Millisecond, CopyBytesPerSecond: 600 << 20,
	},
	"ceph": {
		Alloc: 450 * time.Millisecond, LinkedClone: 700 * time.Millisecond, Free: 1200 * time.Millisecond,
		Snapshot: 600 * time.Millisecond, CopyBytesPerSecond: 250 << 20,
	},
	"hdd-dir": {
		Alloc: 60 * time.Millisecond, LinkedClone: 90 * time.Millisecond, Free: 120 * time.Millisecond,
		Snapshot: 300 * time.Millisecond, CopyBytesPerSecond: 120 << 20,
	},
	"ssd-dir": {
		Alloc: 60 * time.Millisecond, LinkedClone: 60 * time.Millisecond, Free: 40 * time.Millisecond,
		Snapshot: 60 * time.Millisecond, CopyBytesPerSecond: 450 << 20,
	},
}

// profileOf is the default profile of a storage type.
var profileOf = map[string]string{
	"dir": "ssd-dir", "nfs": "hdd-dir", "cifs": "hdd-dir", "lvmthin": "nvme-lvmthin", "lvm": "nvme-lvmthin", "zfspool": "zfs", "rbd": "ceph",
}

// LatencyOf returns the latencies of a storage.
func (st *Store) LatencyOf(s *Storage) Latency {
	if l, ok := st.latency[s.Type]; ok {
		return l
	}
	return Profiles[profileOf[s.Type]]
}
