// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

// seed is the content of a drive for cloud-init's NoCloud datasource.
type seed struct {
	userData, metaData, networkConfig, vendorData []byte
}

// seedLabel is the volume ID of a NoCloud drive; cloud-init ignores case.
const seedLabel = "cidata"

// Offsets in the first descriptor of an ISO 9660 image, after the sixteen sectors of the
// system area.
const (
	volumeIDOffset      = 16*2048 + 40
	pathTableSizeOffset = 16*2048 + 132
	rootSizeOffset      = 16*2048 + 156 + 10
)

// findSeed reads the first drive that is labeled cidata.
func findSeed(images [][]byte, console *console) (seed, bool) {
	for _, image := range images {
		if !strings.EqualFold(volumeID(image), seedLabel) {
			continue
		}
		s, err := readSeed(image)
		if err != nil {
			console.printf("cloud-init: cannot read the cidata drive: %v", err)
			continue
		}
		return s, true
	}
	return seed{}, false
}

func volumeID(image []byte) string {
	if len(image) < volumeIDOffset+32 || !bytes.Equal(image[16*2048+1:16*2048+6], []byte("CD001")) {
		return ""
	}
	return strings.TrimRight(string(image[volumeIDOffset:volumeIDOffset+32]), " \x00")
}

func readSeed(image []byte) (s seed, err error) {
	// The library panics on some corrupt images. A corrupt image must result in
	// an unreadable drive and not crash the simulator.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading a corrupt image: %v", r)
		}
	}()
	// It also allocates as much memory as the image claims to need.
	for _, offset := range []int{pathTableSizeOffset, rootSizeOffset} {
		if len(image) < offset+4 || int64(binary.LittleEndian.Uint32(image[offset:])) > int64(len(image)) {
			return seed{}, errors.New("reading a corrupt image: a directory is larger than the image")
		}
	}
	disc, err := iso9660.Read(file.New(memoryFile{bytes.NewReader(image)}, true), int64(len(image)), 0, 2048)
	if err != nil {
		return seed{}, err
	}
	entries, err := disc.ReadDir(".")
	if err != nil {
		return seed{}, err
	}
	content := map[string][]byte{}
	for _, entry := range entries {
		if entry.IsDir() {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return seed{}, err
		}
		if info.Size() > int64(len(image)) {
			return seed{}, fmt.Errorf("reading a corrupt image: %s is larger than the image", entry.Name())
		}
		if content[entry.Name()], err = disc.ReadFile(entry.Name()); err != nil {
			return seed{}, fmt.Errorf("reading %s: %w", entry.Name(), err)
		}
	}
	for _, required := range []string{"user-data", "meta-data"} {
		if _, ok := content[required]; !ok {
			return seed{}, fmt.Errorf("missing %s", required)
		}
	}
	return seed{
		userData: content["user-data"], metaData: content["meta-data"],
		networkConfig: content["network-config"], vendorData: content["vendor-data"],
	}, nil
}

// memoryFile is an in-memory image that the library can read.
type memoryFile struct{ *bytes.Reader }

func (f memoryFile) Stat() (fs.FileInfo, error) { return imageInfo(f.Size()), nil }
func (memoryFile) Close() error                 { return nil }

type imageInfo int64

func (imageInfo) Name() string       { return "cdrom" }
func (i imageInfo) Size() int64      { return int64(i) }
func (imageInfo) Mode() fs.FileMode  { return 0o400 }
func (imageInfo) ModTime() time.Time { return time.Time{} }
func (imageInfo) IsDir() bool        { return false }
func (imageInfo) Sys() any           { return nil }
