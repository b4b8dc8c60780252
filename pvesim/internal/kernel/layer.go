// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"os"
	"path/filepath"

	"github.com/google/uuid"
)

// layer is a file with the content of a disk: an image, or a copy-on-write overlay of its base.
type layer struct {
	path  string
	base  *layer
	image bool // not created for a disk, so not removed with it
	users int  // disks and layers that need the file
}

// NewImageDisk returns a disk with the content of an image file, or an empty disk if image is "".
func NewImageDisk(image string) *GuestDisk {
	if image == "" {
		return &GuestDisk{}
	}
	return &GuestDisk{base: &layer{path: image, image: true, users: 1}}
}

// Open returns the file in dir that a guest writes the disk's content to, and the file with its initial content, or "".
// The guest creates the first one as an overlay of the second one. The name of the disk is part of the file's name. The
// caller holds the mutex of the kernel.
func (d *GuestDisk) Open(dir, name string) (file, base string) {
	if d.top == nil {
		d.top = &layer{path: filepath.Join(dir, name+"-"+uuid.NewString()[:8]), base: d.base, users: 1}
		if d.base != nil {
			d.base.users++
		}
	}
	if d.top.base != nil {
		base = d.top.base.path
	}
	return d.top.path, base
}

// shareLayers returns the base of a copy of the disk. What was written to the disk becomes part of the base, and the
// next guest of the disk writes to a new file. The copy of a running VM's disk does not contain what its guest wrote.
func (d *GuestDisk) shareLayers() *layer {
	if d.top != nil && !d.inUse {
		if d.base != nil {
			d.base.users-- // the top layer still needs it
		}
		d.base, d.top = d.top, nil
	}
	if d.base != nil {
		d.base.users++
	}
	return d.base
}

// SetInUse records whether the guest of a running VM writes to the disk. The caller holds the mutex of the kernel.
func (d *GuestDisk) SetInUse(inUse bool) { d.inUse = inUse }

// Release removes the files that only this disk needs. The caller holds the mutex of the kernel.
func (d *GuestDisk) Release() {
	d.top.release()
	d.base.release()
	d.top, d.base = nil, nil
}

func (l *layer) release() {
	if l == nil {
		return
	}
	if l.users--; l.users > 0 {
		return
	}
	if !l.image {
		_ = os.Remove(l.path) // a disk whose VM never ran has no file
	}
	l.base.release()
}
