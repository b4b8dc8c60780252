// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// CanLink reports whether a volume can have linked clones. It must be a base volume on a storage with snapshots or
// backing files.
func (st *Store) CanLink(host, volid string) bool {
	s := st.Storage(strings.SplitN(volid, ":", 2)[0])
	v := st.Volume(host, volid)
	return s != nil && v != nil && s.Kind().linked && strings.HasPrefix(path.Base(v.Name), "base-")
}

// LinkVolume creates a linked clone under the lock of the storage.
func (al *Allocator) LinkVolume(ctx context.Context, t *tasks.Task, host string, owner int, s *Storage, from *Volume) (*Volume, error) {
	release, err := al.LockStorage(ctx, t, host, s)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := al.k.Clock.Sleep(ctx, al.store.LatencyOf(s).LinkedClone); err != nil {
		return nil, err
	}
	al.k.Mu.Lock()
	defer al.k.Mu.Unlock()
	a := Allocation{Host: host, Storage: s, Owner: owner, Format: "qcow2", Size: from.Size}
	if err := al.store.checkSpace(a, 0); err != nil {
		return nil, err
	}
	v := &Volume{
		Storage: s.ID, Host: host, Name: al.store.FreeName(a), Size: from.Size, Owner: owner, Base: from.Name, Disk: from.Disk.Clone(),
	}
	al.store.PutVolume(v)
	al.logLinkedClone(t, s, from, v)
	return v, nil
}

func (al *Allocator) logLinkedClone(t *tasks.Task, s *Storage, from, v *Volume) {
	if !s.Kind().FileBased {
		if s.Type == "lvmthin" {
			t.Logf("  Logical volume \"%s\" created.", v.Name)
		}
		return
	}
	file := path.Base(v.Name)
	t.Logf("clone %s: images, %s, %d to %s (base=../%s)", from.Name, file, v.Owner, file, from.Name)
	shape := "cluster_size=65536 extended_l2=off"
	if al.k.Version.CloneAnnounced {
		shape = "cluster_size=131072 extended_l2=on preallocation=metadata"
	}
	t.Logf("Formatting '%s', fmt=qcow2 %s compression_type=zlib size=%d backing_file=../%s backing_fmt=%s lazy_refcounts=off refcount_bits=16",
		s.FilePath(v.Name), shape, v.Size, from.Name, from.Format())
}

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
	t.Logf("transferred %s of %s (100.00%%)", humanSize(size), humanSize(size))
	al.k.Mu.Lock()
	defer al.k.Mu.Unlock()
	to.Used = from.Used
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
