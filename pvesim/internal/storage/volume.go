// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// AdoptDrive makes the volume of a drive that the scenario only mentions.
func (st *Store) AdoptDrive(g *kernel.Guest, key string) error {
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
		used = size / 2 // nobody fills a thin disk
	}
	st.PutVolume(&Volume{Storage: s.ID, Host: g.Host, Name: d.File[len(s.ID)+1:], Size: size, Used: used, Owner: g.VMID})
	return nil
}

// FreeUnreferenced deletes whatever carries the VMID, on all storages, whoever put it there.
func (st *Store) FreeUnreferenced(vmid int) {
	st.k.Mu.Lock()
	defer st.k.Mu.Unlock()
	for key, v := range st.volumes {
		if v.Content() == "images" && v.Owner == vmid && !st.HasChildren(v) {
			delete(st.volumes, key)
		}
	}
}

// HostFile reads a file of the host's storages by its path.
func (st *Store) HostFile(host, path string) []byte {
	for _, v := range st.volumes {
		if v.Blob == nil || (v.Host != "" && v.Host != host) {
			continue
		}
		if s := st.Storage(v.Storage); s != nil && s.AvailableOn(host) && s.FilePath(v.Name) == path {
			return st.blobs[*v.Blob]
		}
	}
	return nil
}

// ReleaseDrive looks after the volume that a drive no longer uses: cloud-init drives and unused disks are deleted, other
// disks become "unusedN".
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

func (st *Store) CheckVolume(host, volid string) error {
	id, _, _ := strings.Cut(volid, ":")
	if _, err := st.CheckStorage(id, host); err != nil {
		return err
	}
	if st.Volume(host, volid) == nil {
		return api.Failf("volume '%s' does not exist", volid)
	}
	return nil
}

const cloudInitSize = 4 << 20

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
	Disk    *kernel.GuestDisk
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

func (st *Store) volumeKey(host, volid string) string {
	id, _, _ := strings.Cut(volid, ":")
	if s := st.Storage(id); s != nil && s.Shared {
		host = ""
	}
	return host + "|" + st.canonical(volid)
}

// canonical drops the base from a linked clone's id: "local:9000/base-9000-disk-0.qcow2/101/vm-101-disk-0.qcow2" is the
// file 101/vm-101-disk-0.qcow2.
func (st *Store) canonical(volid string) string {
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

func (st *Store) Volume(host, volid string) *Volume { return st.volumes[st.volumeKey(host, volid)] }

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

// RemoveVolume drops a volume without any lock of its storage.
func (st *Store) RemoveVolume(host, volid string) { delete(st.volumes, st.volumeKey(host, volid)) }

// Data is the content of a file; nil for disk images.
func (st *Store) Data(v *Volume) []byte {
	if v == nil || v.Blob == nil {
		return nil
	}
	return st.blobs[*v.Blob]
}

// VolumeCounts counts the volumes of each storage and host.
func (st *Store) VolumeCounts() map[string]int {
	out := map[string]int{}
	for _, v := range st.volumes {
		out[v.Storage+"|"+v.Host]++
	}
	return out
}

// PutFile stores a file such as an ISO on a storage; host is ignored for shared ones.
func (st *Store) PutFile(host, storage, name string, data []byte) {
	st.k.Mu.Lock()
	defer st.k.Mu.Unlock()
	st.putFile(host, storage, name, data)
}

func (st *Store) putFile(host, storage, name string, data []byte) {
	sum := sha256.Sum256(data)
	st.blobs[sum] = data
	st.PutVolume(&Volume{Storage: storage, Host: host, Name: name, Size: int64(len(data)), Used: int64(len(data)), Blob: &sum})
}

// VirtualSize is the size of the disk inside an image file.
func (st *Store) VirtualSize(v *Volume) int64 {
	if v.Blob == nil {
		return v.Size
	}
	data := st.blobs[*v.Blob]
	if len(data) >= 32 && string(data[:4]) == "QFI\xfb" {
		return int64(binary.BigEndian.Uint64(data[24:32])) //nolint:gosec // an image of 8 EiB is nobody's
	}
	return int64(len(data))
}
