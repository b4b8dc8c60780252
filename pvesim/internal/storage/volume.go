// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"crypto/sha256"
	"encoding/binary"
	"path"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// ReadHostFile returns the content of a file on the storages of a host by its path, or nil.
func (st *Store) ReadHostFile(host, path string) []byte {
	for _, v := range st.volumes {
		if v.Blob == nil || (v.Host != "" && v.Host != host) {
			continue
		}
		if s := st.Storage(v.Storage); s != nil && s.IsAvailableOn(host) && s.FilePath(v.Name) == path {
			return st.blobs[*v.Blob]
		}
	}
	return nil
}

const cloudInitSize = 4 << 20

// Volume is a disk image or file on a storage.
type Volume struct {
	Storage string
	Host    string // empty on shared storages
	Name    string // the part of the ID after "storage:"
	Size    int64
	Used    int64
	Owner   int
	Base    string // name of the base volume of a linked clone
	CTime   int64
	Blob    *[32]byte
	Disk    *kernel.GuestDisk
}

// ID returns the ID of the volume in configs and API calls.
func (v *Volume) ID() string { return v.Storage + ":" + v.Name }

// Content returns the content type of the volume.
func (v *Volume) Content() string {
	if head, _, ok := strings.Cut(v.Name, "/"); ok && slices.Contains([]string{"iso", "import", "vztmpl", "snippets", "backup"}, head) {
		return head
	}
	return "images"
}

// Format returns the format of the volume in lists.
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

func (st *Store) volumeKey(host, volid string) string {
	id, _, _ := strings.Cut(volid, ":")
	if s := st.Storage(id); s != nil && s.Shared {
		host = ""
	}
	return host + "|" + st.canonicalID(volid)
}

// canonicalID returns a volume ID without the base of a linked clone: the file of
// "local:9000/base-9000-disk-0.qcow2/101/vm-101-disk-0.qcow2" is 101/vm-101-disk-0.qcow2.
func (st *Store) canonicalID(volid string) string {
	id, name, _ := strings.Cut(volid, ":")
	s := st.Storage(id)
	if s == nil || !s.Kind().linkedInName || !strings.Contains(name, "base-") {
		return volid
	}
	parts := strings.Split(name, "/")
	if s.Kind().FileBased && len(parts) == 4 {
		return id + ":" + strings.Join(parts[2:], "/")
	}
	if !s.Kind().FileBased && len(parts) == 2 {
		return id + ":" + parts[1]
	}
	return volid
}

// Volume returns a volume on a host, or nil.
func (st *Store) Volume(host, volid string) *Volume { return st.volumes[st.volumeKey(host, volid)] }

// PutVolume adds a volume.
func (st *Store) PutVolume(v *Volume) {
	if s := st.Storage(v.Storage); s != nil && s.Shared {
		v.Host = ""
	}
	if v.CTime == 0 {
		v.CTime = st.k.Clock.Now().Unix()
	}
	if v.Disk == nil {
		v.Disk = &kernel.GuestDisk{}
	}
	st.volumes[st.volumeKey(v.Host, v.ID())] = v
}

// RemoveVolume removes a volume without the lock of its storage.
func (st *Store) RemoveVolume(host, volid string) { delete(st.volumes, st.volumeKey(host, volid)) }

// FileContent returns the content of a file, or nil for disk images.
func (st *Store) FileContent(v *Volume) []byte {
	if v == nil || v.Blob == nil {
		return nil
	}
	return st.blobs[*v.Blob]
}

// VolumeCounts returns the number of volumes by storage and host, "local|pve1". The host of shared storages is empty.
func (st *Store) VolumeCounts() map[string]int {
	out := map[string]int{}
	for _, v := range st.volumes {
		out[v.Storage+"|"+v.Host]++
	}
	return out
}

// PutFile adds a file, for example an ISO. The host is ignored if the storage is shared. The caller does not hold the
// mutex.
func (st *Store) PutFile(host, storage, name string, data []byte) {
	st.k.Mu.Lock()
	defer st.k.Mu.Unlock()
	sum := sha256.Sum256(data)
	st.blobs[sum] = data
	st.PutVolume(&Volume{Storage: storage, Host: host, Name: name, Size: int64(len(data)), Used: int64(len(data)), Blob: &sum})
}

// VirtualSize returns the size of the disk in an image file.
func (st *Store) VirtualSize(v *Volume) int64 {
	if v.Blob == nil {
		return v.Size
	}
	data := st.blobs[*v.Blob]
	if len(data) >= 32 && string(data[:4]) == "QFI\xfb" {
		return int64(binary.BigEndian.Uint64(data[24:32])) //nolint:gosec // no image has 8 EiB
	}
	return int64(len(data))
}
