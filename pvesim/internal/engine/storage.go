// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

const cloudInitSize = 4 << 20

const maxFileSize = 16 << 40 // of ext4

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

// kind describes what a type of storage can do; it is data, so that no method asks for types by name.
type kind struct {
	fileBased, thin, template, linked, shared bool
	linkedInName                              bool // a linked clone's name contains its base
	defaultPath                               string
}

var kinds = map[string]kind{
	"dir":     {fileBased: true, thin: true, template: true, linked: true, linkedInName: true, defaultPath: "/var/lib/vz"},
	"nfs":     {fileBased: true, thin: true, template: true, linked: true, linkedInName: true, shared: true, defaultPath: "/mnt/pve/"},
	"cifs":    {fileBased: true, thin: true, template: true, linked: true, linkedInName: true, shared: true, defaultPath: "/mnt/pve/"},
	"lvmthin": {thin: true, template: true, linked: true},
	"lvm":     {},
	"zfspool": {thin: true, template: true, linked: true, linkedInName: true},
	"rbd":     {thin: true, template: true, linked: true, linkedInName: true, shared: true},
}

func (s *Storage) kind() kind { return kinds[s.Type] }

// KnownStorageType tells whether the simulator models a type of storage.
func KnownStorageType(typ string) bool { _, ok := kinds[typ]; return ok }

// Volume is a disk image or file on a storage.
type Volume struct {
	Storage string
	Host    string // "" on shared storages
	Name    string // what follows "storage:"
	Size    int64
	Used    int64
	Owner   int
	Base    string // the base volume's name, for linked clones
	CTime   int64
	Blob    *[32]byte
	Disk    *GuestDisk
}

// ID is the volume's id in configs and API calls.
func (v *Volume) ID() string { return v.Storage + ":" + v.Name }

// Content is the volume's content type.
func (v *Volume) Content() string {
	if head, _, ok := strings.Cut(v.Name, "/"); ok && slices.Contains([]string{"iso", "import", "vztmpl", "snippets", "backup"}, head) {
		return head
	}
	return "images"
}

// Format is the volume's format as lists show it.
func (v *Volume) Format() string {
	switch c := v.Content(); c {
	case "iso":
		return "iso"
	case "snippets":
		return "snippet"
	}
	ext := strings.TrimPrefix(path.Ext(v.Name), ".")
	if slices.Contains([]string{"qcow2", "vmdk", "raw", "ova"}, ext) {
		return ext
	}
	return "raw"
}

// GuestDisk is the little of a disk's content that simulated guests use: named files.
type GuestDisk struct {
	mu    sync.Mutex
	files map[string][]byte
}

// Read returns a file.
func (d *GuestDisk) Read(name string) ([]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, ok := d.files[name]
	return slices.Clone(data), ok
}

// Write stores a file.
func (d *GuestDisk) Write(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files == nil {
		d.files = map[string][]byte{}
	}
	d.files[name] = slices.Clone(data)
}

// Names lists the files in order.
func (d *GuestDisk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.files))
	for n := range d.files {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

func (d *GuestDisk) copy() *GuestDisk {
	out := &GuestDisk{files: map[string][]byte{}}
	for _, n := range d.Names() {
		out.files[n], _ = d.Read(n)
	}
	return out
}

// AddStorage adds a storage definition.
func (e *Engine) AddStorage(s *Storage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	k := s.kind()
	if s.Path == "" && k.fileBased {
		s.Path = k.defaultPath
		if s.Type != "dir" {
			s.Path += s.ID
		} else if s.ID != "local" {
			s.Path = "/mnt/" + s.ID
		}
	}
	s.Shared = s.Shared || k.shared
	e.definitions = append(e.definitions, s)
}

// allStorages lists the storages in the order in which they were added. The caller holds the mutex.
func (e *Engine) allStorages() []*Storage { return e.definitions }

func (e *Engine) storage(id string) *Storage {
	for _, s := range e.definitions {
		if s.ID == id {
			return s
		}
	}
	return nil
}

// availableOn tells whether a host has the storage.
func (s *Storage) availableOn(host string) bool {
	return !s.Disabled && (len(s.Hosts) == 0 || slices.Contains(s.Hosts, host))
}

func (s *Storage) holds(content string) bool { return slices.Contains(s.Content, content) }

// checkStorage finds a storage that is enabled on a host; the texts are those of storage_check_enabled.
func (e *Engine) checkStorage(id, host string) (*Storage, error) {
	s := e.storage(id)
	switch {
	case s == nil:
		return nil, failf("storage '%s' does not exist", id)
	case s.Disabled:
		return nil, failf("storage '%s' is disabled", id)
	case !s.availableOn(host):
		return nil, failf("storage '%s' is not available on node '%s'", id, host)
	}
	return s, nil
}

func (e *Engine) volumeKey(host, volid string) string {
	id, _, _ := strings.Cut(volid, ":")
	if s := e.storage(id); s != nil && s.Shared {
		host = ""
	}
	return host + "|" + e.canonical(volid)
}

// canonical drops the base from a linked clone's id: "local:9000/base-9000-disk-0.qcow2/101/vm-101-disk-0.qcow2" is the
// file 101/vm-101-disk-0.qcow2.
func (e *Engine) canonical(volid string) string {
	id, name, _ := strings.Cut(volid, ":")
	s := e.storage(id)
	if s == nil || !s.kind().linkedInName || !strings.Contains(name, "base-") {
		return volid
	}
	parts := strings.Split(name, "/")
	if s.kind().fileBased && len(parts) == 4 {
		return id + ":" + strings.Join(parts[2:], "/")
	}
	if !s.kind().fileBased && len(parts) == 2 {
		return id + ":" + parts[1]
	}
	return volid
}

func (e *Engine) volume(host, volid string) *Volume { return e.volumes[e.volumeKey(host, volid)] }

func (e *Engine) putVolume(v *Volume) {
	if s := e.storage(v.Storage); s != nil && s.Shared {
		v.Host = ""
	}
	if v.CTime == 0 {
		v.CTime = e.Clock.Now().Unix()
	}
	if v.Disk == nil {
		v.Disk = &GuestDisk{}
	}
	e.volumes[e.volumeKey(v.Host, v.ID())] = v
}

// removeVolume drops a volume without any lock of its storage.
func (e *Engine) removeVolume(host, volid string) { delete(e.volumes, e.volumeKey(host, volid)) }

// data is the content of a file; nil for disk images.
func (e *Engine) data(v *Volume) []byte {
	if v == nil || v.Blob == nil {
		return nil
	}
	return e.blobs[*v.Blob]
}

// volumeCounts counts the volumes of each storage and host.
func (e *Engine) volumeCounts() map[string]int {
	out := map[string]int{}
	for _, v := range e.volumes {
		out[v.Storage+"|"+v.Host]++
	}
	return out
}

// PutFile stores a file such as an ISO on a storage; host is ignored for shared ones.
func (e *Engine) PutFile(host, storage, name string, data []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.putFile(host, storage, name, data)
}

func (e *Engine) putFile(host, storage, name string, data []byte) {
	sum := sha256.Sum256(data)
	e.blobs[sum] = data
	e.putVolume(&Volume{Storage: storage, Host: host, Name: name, Size: int64(len(data)), Used: int64(len(data)), Blob: &sum})
}

// virtualSize is the size of the disk inside an image file.
func (e *Engine) virtualSize(v *Volume) int64 {
	if v.Blob == nil {
		return v.Size
	}
	data := e.blobs[*v.Blob]
	if len(data) >= 32 && string(data[:4]) == "QFI\xfb" {
		return int64(binary.BigEndian.Uint64(data[24:32])) //nolint:gosec // an image of 8 EiB is nobody's
	}
	return int64(len(data))
}

// file is the path of a volume on its host, for logs and error texts.
func (s *Storage) file(name string) string {
	head, rest, _ := strings.Cut(name, "/")
	sub := map[string]string{"iso": "template/iso", "vztmpl": "template/cache", "import": "import", "snippets": "snippets", "backup": "dump"}
	switch {
	case s.Type == "rbd":
		return "rbd:" + s.ID + "/" + name
	case s.Type == "zfspool":
		return "/dev/zvol/" + s.ID + "/" + name
	case !s.kind().fileBased:
		return "/dev/" + s.ID + "/" + name
	case sub[head] != "":
		return s.Path + "/" + sub[head] + "/" + rest
	default:
		return s.Path + "/images/" + name
	}
}

// usage sums up what a storage holds on a host.
func (e *Engine) usage(s *Storage, host string) (used int64) {
	used = s.BaseUsed
	for _, v := range e.volumes {
		if v.Storage == s.ID && (v.Host == "" || v.Host == host) {
			used += v.Used
		}
	}
	return min(used, s.Size)
}

// usages sums up all storages in one pass over the volumes.
func (e *Engine) usages() map[string]int64 {
	out := map[string]int64{}
	for _, v := range e.volumes {
		out[v.Storage+"|"+v.Host] += v.Used
	}
	return out
}

// lockStorage takes the lock under which volumes are made and freed: a file on the host, or cluster-wide if shared.
func (e *Engine) lockStorage(ctx context.Context, t *tasks.Task, host string, s *Storage) (func(), error) {
	if s.Shared {
		return e.Locks.Cluster(ctx, "storage-"+s.ID, 10*time.Second)
	}
	return e.fileLock(ctx, t, host, "/var/lock/pve-manager/pve-storage-"+s.ID, locks.Exclusive, 10*time.Second)
}

// lockGuest takes the flock of a VM's config on its host.
func (e *Engine) lockGuest(ctx context.Context, t *tasks.Task, host string, vmid int, mode locks.Mode, timeout time.Duration) (func(), error) {
	return e.fileLock(ctx, t, host, "/var/lock/qemu-server/lock-"+strconv.Itoa(vmid)+".conf", mode, timeout)
}

// fileLock takes a flock; a task's log shows that it had to wait.
func (e *Engine) fileLock(ctx context.Context, t *tasks.Task, host, file string, mode locks.Mode, timeout time.Duration) (func(), error) {
	waited := false
	release, err := e.Locks.File(ctx, host, file, mode, timeout, func() {
		waited = true
		if t != nil {
			t.Logf("trying to acquire lock...")
		}
	})
	if err == nil && waited && t != nil {
		t.Logf(" OK")
	}
	return release, err
}
