// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// allocation is a request for a new volume.
type allocation struct {
	host    string
	storage *Storage
	owner   int
	format  string // "" chooses the storage's default
	name    string // "" chooses the lowest free disk number
	size    int64
}

// allocate makes a volume under the storage's lock.
func (e *Engine) allocate(ctx context.Context, t *tasks.Task, a allocation) (*Volume, error) {
	release, err := e.lockStorage(ctx, t, a.host, a.storage)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := e.Clock.Sleep(ctx, e.latencyOf(a.storage).Alloc); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	v := &Volume{Storage: a.storage.ID, Host: a.host, Size: a.size, Owner: a.owner}
	v.Name = a.name
	if v.Name == "" {
		v.Name = e.freeName(a)
	}
	if e.volume(a.host, v.ID()) != nil {
		return nil, failf("disk image '%s' already exists", a.storage.file(v.Name))
	}
	if !a.storage.kind().thin {
		v.Used = a.size
	}
	if err := e.checkSpace(a, v.Used); err != nil {
		return nil, err
	}
	e.putVolume(v)
	logAllocation(t, a.storage, v)
	return v, nil
}

// checkSpace refuses what cannot fit. Thin storages promise more than they have; only a full one refuses.
func (e *Engine) checkSpace(a allocation, used int64) error {
	if a.storage.kind().fileBased && a.size > maxFileSize {
		return failf("unable to create image: 'image' - qemu-img: %s: Could not resize file: File too large", a.storage.file(e.freeName(a)))
	}
	free := a.storage.Size - e.usage(a.storage, a.host)
	if !a.storage.Full && used <= free {
		return nil
	}
	switch a.storage.Type {
	case "lvm":
		return failf("not enough free space (%d < %d)", max(free, 0)>>10, a.size>>10)
	case "lvmthin":
		return failf("lvcreate '%s/vm-%d-disk-0' error:   Cannot create new thin volume, free space in thin pool %s/data reached threshold.",
			a.storage.ID, a.owner, a.storage.ID)
	default:
		return failf("unable to create image: got error: No space left on device")
	}
}

// freeName picks the lowest free "vm-ID-disk-N". The caller holds the mutex.
func (e *Engine) freeName(a allocation) string {
	taken := map[int]bool{}
	for _, v := range e.volumes {
		if v.Storage != a.storage.ID || v.Owner != a.owner || (v.Host != "" && v.Host != a.host) {
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
	return a.storage.volumeName(a.owner, fmt.Sprintf("disk-%d", n), a.format)
}

func (s *Storage) volumeName(owner int, what, format string) string {
	if !s.kind().fileBased {
		return fmt.Sprintf("vm-%d-%s", owner, what)
	}
	if format == "" {
		format = "raw"
	}
	return fmt.Sprintf("%d/vm-%d-%s.%s", owner, owner, what, format)
}

func logAllocation(t *tasks.Task, s *Storage, v *Volume) {
	if t == nil {
		return
	}
	switch {
	case !s.kind().fileBased && strings.HasPrefix(s.Type, "lvm"):
		t.Logf("  Logical volume \"%s\" created.", v.Name)
	case !s.kind().fileBased:
	case v.Format() == "qcow2":
		t.Logf("Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata compression_type=zlib size=%d lazy_refcounts=off refcount_bits=16",
			s.file(v.Name), v.Size)
	default:
		t.Logf("Formatting '%s', fmt=%s size=%d preallocation=off", s.file(v.Name), v.Format(), v.Size)
	}
}

// free removes a volume under the storage's lock.
func (e *Engine) free(ctx context.Context, t *tasks.Task, host, volid string) error {
	e.mu.Lock()
	id, _, _ := strings.Cut(volid, ":")
	s := e.storage(id)
	e.mu.Unlock()
	if s == nil {
		return failf("storage '%s' does not exist", id)
	}
	release, err := e.lockStorage(ctx, t, host, s)
	if err != nil {
		return err
	}
	defer release()
	if err := e.Clock.Sleep(ctx, e.latencyOf(s).Free); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	v := e.volume(host, volid)
	if v == nil {
		return nil
	}
	if e.hasChildren(v) {
		return failf("base volume '%s' is still in use by linked clones", volid)
	}
	e.removeVolume(host, volid)
	return nil
}

// hasChildren tells whether a base volume has linked clones. LVM-thin keeps no such relation.
func (e *Engine) hasChildren(base *Volume) bool {
	for _, v := range e.volumes {
		if v.Base != "" && v.Base == base.Name && v.Storage == base.Storage && v.Host == base.Host {
			return e.storage(v.Storage).kind().linkedInName
		}
	}
	return false
}
