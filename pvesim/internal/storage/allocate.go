// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

const maxFileSize = 16 << 40 // limit of ext4

// Allocator creates, copies and removes volumes under the locks of their storages, which takes time. Its methods acquire
// the mutex of the kernel themselves.
type Allocator struct {
	k     *kernel.Kernel
	store *Store
}

// NewAllocator returns an allocator for the volumes of a store.
func NewAllocator(store *Store) *Allocator { return &Allocator{k: store.k, store: store} }

// Allocation describes a new volume.
type Allocation struct {
	Host    string
	Storage *Storage
	Owner   int
	Format  string // "" for the default of the storage
	name    string // "" for the lowest free disk number
	Size    int64
}

// Allocate creates a volume under the lock of the storage.
func (al *Allocator) Allocate(ctx context.Context, t *tasks.Task, a Allocation) (created *Volume, err error) {
	err = al.Change(ctx, t, a.Host, a.Storage, al.store.LatencyOf(a.Storage).Alloc, func() error {
		v := &Volume{Storage: a.Storage.ID, Host: a.Host, Name: a.name, Size: a.Size, Owner: a.Owner}
		if v.Name == "" {
			v.Name = al.store.FreeName(a)
		}
		if al.store.Volume(a.Host, v.ID()) != nil {
			return volumeExistsError(a.Storage, v.Name)
		}
		if !a.Storage.Kind().thin {
			v.Used = a.Size
		}
		if err := al.store.checkSpace(a, v.Used); err != nil {
			return err
		}
		al.store.PutVolume(v)
		logAllocation(t, a.Storage, v)
		created = v
		return nil
	})
	return created, err
}

func volumeExistsError(s *Storage, name string) error {
	if strings.HasPrefix(s.Type, "lvm") {
		return api.Failf(`lvcreate '%s/%s' error:   Logical Volume "%s" already exists in volume group "%s"`, s.ID, name, name, s.ID)
	}
	return api.Failf("disk image '%s' already exists", s.FilePath(name))
}

// AllocateCloudInit allocates the cloud-init drive of a VM.
func (al *Allocator) AllocateCloudInit(ctx context.Context, t *tasks.Task, host string, s *Storage, vmid int) (*Volume, error) {
	return al.Allocate(ctx, t, Allocation{
		Host: host, Storage: s, Owner: vmid, name: s.VolumeName(vmid, "cloudinit", "qcow2"), Size: cloudInitSize,
	})
}

// checkSpace returns an error if a volume does not fit. Thin storages can be overcommitted, so they fail only if they
// are full.
func (st *Store) checkSpace(a Allocation, used int64) error {
	if a.Storage.Kind().FileBased && a.Size > maxFileSize {
		return api.Failf("unable to create image: 'image' - qemu-img: %s: Could not resize file: File too large", a.Storage.FilePath(st.FreeName(a)))
	}
	free := a.Storage.Size - st.usage(a.Storage, a.Host)
	if !a.Storage.Full && used <= free {
		return nil
	}
	switch a.Storage.Type {
	case "lvm":
		return api.Failf("not enough free space (%d < %d)", max(free, 0)>>10, a.Size>>10)
	case "lvmthin":
		return api.Failf("lvcreate '%s/vm-%d-disk-0' error:   Cannot create new thin volume, free space in thin pool %s/data reached threshold.",
			a.Storage.ID, a.Owner, a.Storage.ID)
	default:
		return api.Failf("unable to create image: got error: No space left on device")
	}
}

// FreeName returns the lowest free "vm-ID-disk-N".
func (st *Store) FreeName(a Allocation) string {
	taken := map[int]bool{}
	for _, v := range st.volumes {
		if v.Storage != a.Storage.ID || v.Owner != a.Owner || (v.Host != "" && v.Host != a.Host) {
			continue
		}
		base := path.Base(v.Name)
		var id, n int
		for _, form := range []string{"vm-%d-disk-%d", "base-%d-disk-%d"} {
			if _, err := fmt.Sscanf(base, form, &id, &n); err == nil {
				taken[n] = true
			}
		}
	}
	n := 0
	for taken[n] {
		n++
	}
	return a.Storage.VolumeName(a.Owner, fmt.Sprintf("disk-%d", n), a.Format)
}

func logAllocation(t *tasks.Task, s *Storage, v *Volume) {
	if t == nil {
		return
	}
	switch {
	case !s.Kind().FileBased && strings.HasPrefix(s.Type, "lvm"):
		t.Logf("  Logical volume \"%s\" created.", v.Name)
	case !s.Kind().FileBased:
	case v.Format() == "qcow2":
		t.Logf("Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib size=%d lazy_refcounts=off refcount_bits=16",
			s.FilePath(v.Name), v.Size)
	default:
		t.Logf("Formatting '%s', fmt=%s size=%d preallocation=off", s.FilePath(v.Name), v.Format(), v.Size)
	}
}

// FreeVolume removes a volume under the lock of the storage.
func (al *Allocator) FreeVolume(ctx context.Context, t *tasks.Task, host, volid string) error {
	al.k.Mu.Lock()
	id, _, _ := strings.Cut(volid, ":")
	s := al.store.Storage(id)
	al.k.Mu.Unlock()
	if s == nil {
		return api.Failf("storage '%s' does not exist", id)
	}
	return al.Change(ctx, t, host, s, al.store.LatencyOf(s).Free, func() error {
		if v := al.store.Volume(host, volid); v != nil && al.store.HasChildren(v) {
			return api.Failf("base volume '%s' is still in use by linked clones", volid)
		}
		al.store.RemoveVolume(host, volid)
		return nil
	})
}

// DiscardVolumes removes the volumes of a VM that could not be created. Those on inactive storages remain: Proxmox only
// logs the error.
func (al *Allocator) DiscardVolumes(t *tasks.Task, host string, volids []string) {
	al.k.Mu.Lock()
	defer al.k.Mu.Unlock()
	for _, volid := range volids {
		id, name, _ := strings.Cut(volid, ":")
		s := al.store.Storage(id)
		if s == nil || !s.inactive[host] {
			al.store.RemoveVolume(host, volid)
		} else if t != nil {
			t.Logf("%v", s.checkActive(host, name))
		}
	}
}

// HasChildren reports whether a base volume has linked clones. LVM-thin does not track them.
func (st *Store) HasChildren(base *Volume) bool {
	for _, v := range st.volumes {
		if v.Base != "" && v.Base == base.Name && v.Storage == base.Storage && v.Host == base.Host {
			return st.Storage(v.Storage).Kind().linkedInName
		}
	}
	return false
}

// Change changes a volume under the lock of the storage and the mutex, after the time that the operation takes.
func (al *Allocator) Change(
	ctx context.Context, t *tasks.Task, host string, s *Storage, took time.Duration, change func() error,
) error {
	release, err := al.lockStorage(ctx, t, host, s)
	if err != nil {
		return err
	}
	defer release()
	if err := al.k.Clock.Sleep(ctx, took); err != nil {
		return err
	}
	al.k.Mu.Lock()
	defer al.k.Mu.Unlock()
	if err := s.checkActive(host, "data"); err != nil {
		return err
	}
	return change()
}

// lockStorage acquires the lock for creating and removing volumes: a file lock on the host, or a cluster-wide lock if
// the storage is shared.
func (al *Allocator) lockStorage(ctx context.Context, t *tasks.Task, host string, s *Storage) (func(), error) {
	if s.Shared {
		return al.k.Locks.Cluster(ctx, "storage-"+s.ID, 10*time.Second)
	}
	return al.k.FileLock(ctx, t, host, "/var/lock/pve-manager/pve-storage-"+s.ID, locks.Exclusive, 10*time.Second)
}

// HoldStorageLock acquires the lock of a storage until release is called.
func (al *Allocator) HoldStorageLock(ctx context.Context, host, storage string) (release func(), err error) {
	al.k.Mu.Lock()
	s := al.store.Storage(storage)
	al.k.Mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("there is no storage %s", storage)
	}
	return al.lockStorage(ctx, nil, host, s)
}

// FreeUnreferenced removes all disks with the VMID on all storages, even those of another owner.
func (al *Allocator) FreeUnreferenced(vmid int) {
	al.k.Mu.Lock()
	defer al.k.Mu.Unlock()
	for _, v := range al.store.volumes {
		if v.Content() == "images" && v.Owner == vmid && !al.store.HasChildren(v) {
			al.store.RemoveVolume(v.Host, v.ID())
		}
	}
}

// CanLink reports whether a volume can have linked clones. It must be a base volume on a storage with snapshots or
// backing files.
func (st *Store) CanLink(host, volid string) bool {
	s := st.Storage(strings.SplitN(volid, ":", 2)[0])
	v := st.Volume(host, volid)
	return s != nil && v != nil && s.Kind().linked && strings.HasPrefix(path.Base(v.Name), "base-")
}

// LinkVolume creates a linked clone under the lock of the storage.
func (al *Allocator) LinkVolume(
	ctx context.Context, t *tasks.Task, host string, owner int, s *Storage, from *Volume,
) (created *Volume, err error) {
	err = al.Change(ctx, t, host, s, al.store.LatencyOf(s).LinkedClone, func() error {
		a := Allocation{Host: host, Storage: s, Owner: owner, Format: "qcow2", Size: from.Size}
		if err := al.store.checkSpace(a, 0); err != nil {
			return err
		}
		created = &Volume{
			Storage: s.ID, Host: host, Name: al.store.FreeName(a), Size: from.Size, Owner: owner, Base: from.Name, Disk: from.Disk.Clone(),
		}
		al.store.PutVolume(created)
		logLinkedClone(t, al.k.Version, s, from, created)
		return nil
	})
	return created, err
}

func logLinkedClone(t *tasks.Task, version kernel.Version, s *Storage, from, v *Volume) {
	if !s.Kind().FileBased {
		if s.Type == "lvmthin" {
			t.Logf("  Logical volume \"%s\" created.", v.Name)
		}
		return
	}
	file := path.Base(v.Name)
	t.Logf("clone %s: images, %s, %d to %s (base=../%s)", from.Name, file, v.Owner, file, from.Name)
	shape := "cluster_size=65536 extended_l2=off"
	if version.CloneAnnounced {
		shape = "cluster_size=131072 extended_l2=on preallocation=metadata"
	}
	t.Logf("Formatting '%s', fmt=qcow2 %s compression_type=zlib size=%d backing_file=../%s backing_fmt=%s lazy_refcounts=off refcount_bits=16",
		s.FilePath(v.Name), shape, v.Size, from.Name, from.Format())
}

// oneReport is the size up to which qemu-img reports the end of a copy once: it reports the end of longer ones twice.
const oneReport = 1 << 30

// CopyVolume copies a volume. The duration depends on the virtual size.
func (al *Allocator) CopyVolume(ctx context.Context, t *tasks.Task, s *Storage, from, to *Volume) error {
	if al.k.Version.CloneAnnounced {
		t.Logf("allocated target volume '%s'", to.ID())
	}
	size := to.Size
	t.Logf("transferred 0.0 B of %s (0.00%%)", humanSize(size))
	rate := al.store.LatencyOf(s).CopyBytesPerSecond
	if rate > 0 {
		took := time.Duration(float64(size) / float64(rate) * float64(time.Second))
		if err := al.k.Clock.Sleep(ctx, took); err != nil {
			return err
		}
	}
	al.k.Mu.Lock()
	defer al.k.Mu.Unlock()
	if err := s.checkActive(to.Host, to.Name); err != nil {
		return err
	}
	t.Logf("transferred %s of %s (100.00%%)", humanSize(size), humanSize(size))
	if size > oneReport {
		t.Logf("transferred %s of %s (100.00%%)", humanSize(size), humanSize(size))
	}
	to.Used = from.Used
	to.Disk.Release()
	to.Disk = from.Disk.Clone()
	if from.Content() != "images" {
		to.Used = from.Size
	}
	return nil
}

// humanSize returns a size as the progress of a copy shows it.
func humanSize(n int64) string {
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for f >= 1024 && i < len(units)-1 {
		f /= 1024
		i++
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
