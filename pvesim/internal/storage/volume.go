// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// ReadHostFile returns the content of a file on the storages of a host by its path, or nil.
func (st *Store) ReadHostFile(host, path string) []byte {
	for _, v := range st.volumes {
		if v.Blob == nil || (v.Host != "" && v.Host != host) {
			continue
		}
		if s := st.Storage(v.Storage); s != nil && s.IsAvailableOn(host) && s.FilePath(v.Name) == path {
			return st.blobs[*v.Blob].bytes()
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

// RemoveVolume removes a volume and its content without the lock of its storage.
func (st *Store) RemoveVolume(host, volid string) {
	key := st.volumeKey(host, volid)
	if v := st.volumes[key]; v != nil {
		v.Disk.Release()
		delete(st.volumes, key)
	}
}

// ChangeVolume changes the host or the name of a volume.
func (st *Store) ChangeVolume(v *Volume, change func(v *Volume)) {
	delete(st.volumes, st.volumeKey(v.Host, v.ID()))
	change(v)
	st.PutVolume(v)
}

// FileContent returns the content of a file, or nil for disk images.
func (st *Store) FileContent(v *Volume) []byte {
	if v == nil || v.Blob == nil {
		return nil
	}
	return st.blobs[*v.Blob].bytes()
}

// PutFile adds a file, for example an ISO. The host is ignored if the storage is shared. The caller does not hold the
// mutex.
func (st *Store) PutFile(host, storage, name string, data []byte) {
	b, err := st.receive(name, bytes.NewReader(data))
	if err != nil {
		b = newBlob(data) // the directory is not writable
	}
	st.putBlob(host, storage, name, b)
}

func (st *Store) putBlob(host, storage, name string, b *blob) {
	st.k.Mu.Lock()
	defer st.k.Mu.Unlock()
	st.blobs[b.sum] = b
	st.PutVolume(&Volume{
		Storage: storage, Host: host, Name: name, Size: b.size, Used: b.size, Blob: &b.sum, Disk: kernel.NewImageDisk(b.path),
	})
}

// VirtualSize returns the size of the disk in an image file.
func (st *Store) VirtualSize(v *Volume) int64 {
	if v.Blob == nil {
		return v.Size
	}
	b := st.blobs[*v.Blob]
	if head := b.head(32); len(head) == 32 && string(head[:4]) == "QFI\xfb" {
		return int64(binary.BigEndian.Uint64(head[24:32])) //nolint:gosec // no image has 8 EiB
	}
	return b.size
}

// CreateMissingVolume creates the volume of a drive if it does not exist.
func (st *Store) CreateMissingVolume(g *kernel.Guest, key string) error {
	d, ok := qm.ParseDrive(key, g.Config.Options[key])
	if !ok {
		return fmt.Errorf("drive %s: cannot read %q", key, g.Config.Options[key])
	}
	if !d.HasVolume() {
		return nil
	}
	s := st.Storage(d.Storage())
	if s == nil {
		return fmt.Errorf("drive %s: there is no storage %q", key, d.Storage())
	}
	if st.Volume(g.Host, d.File) != nil {
		return nil
	}
	size, _ := qm.ParseSize(d.Opts["size"])
	if size == 0 && d.IsCloudInit() {
		size = cloudInitSize
	}
	used := size
	if s.Kind().thin {
		used = size / 2 // thin volumes are rarely full
	}
	v := &Volume{Storage: s.ID, Host: g.Host, Name: d.File[len(s.ID)+1:], Size: size, Used: used, Owner: ownerInName(d.File, g.VMID)}
	if g.Config.IsTemplate() && key == qm.BootDisk(g.Config.Options) {
		v.Disk = kernel.NewImageDisk(st.files.TemplateImage)
	}
	st.PutVolume(v)
	return nil
}

var ownerPattern = regexp.MustCompile(`(?:vm|base|subvol)-(\d+)-[^/]*$`)

// ownerInName returns the VMID in the name of a volume, which decides who owns it, or the default if it contains none.
func ownerInName(name string, vmid int) int {
	if found := ownerPattern.FindStringSubmatch(name); found != nil {
		vmid, _ = strconv.Atoi(found[1])
	}
	return vmid
}

// ReleaseDrive releases the volume of a drive that a VM no longer uses. Cloud-init drives and unused disks are removed,
// other disks become "unusedN".
func (st *Store) ReleaseDrive(g *kernel.Guest, opt, old, now string, force bool) {
	unused := strings.HasPrefix(opt, "unused")
	if old == "" || (!qm.IsDriveKey(opt) && !unused) {
		return
	}
	was, _ := qm.ParseDrive(opt, old)
	is, _ := qm.ParseDrive(opt, now)
	v := st.Volume(g.Host, was.File)
	if was.File == is.File || v == nil || v.Content() != "images" || v.Owner != g.VMID {
		return
	}
	if unused || force || was.IsCloudInit() {
		st.RemoveVolume(g.Host, was.File)
		return
	}
	for i := range 256 {
		key := "unused" + strconv.Itoa(i)
		if _, taken := g.Config.Options[key]; !taken {
			g.Config.Options[key] = was.File
			return
		}
	}
}

// CheckVolume returns an error if a volume does not exist on a host, or its storage is inactive.
func (st *Store) CheckVolume(host, volid string) error {
	id, name, _ := strings.Cut(volid, ":")
	s, err := st.CheckStorage(id, host)
	if err != nil {
		return err
	}
	if err := s.checkActive(host, name); err != nil {
		return err
	}
	if st.Volume(host, volid) == nil {
		return api.Failf("volume '%s' does not exist", volid)
	}
	return nil
}

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

// Usage is the number of volumes on a storage and the bytes that they use.
type Usage struct {
	Volumes int
	Bytes   int64
}

// Usages returns the usage by storage and host, "local|pve1". The host of shared storages is empty.
func (st *Store) Usages() map[string]Usage {
	out := map[string]Usage{}
	for _, v := range st.volumes {
		key := v.Storage + "|" + v.Host
		out[key] = Usage{Volumes: out[key].Volumes + 1, Bytes: out[key].Bytes + v.Used}
	}
	return out
}
