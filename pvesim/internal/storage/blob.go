// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storage

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// blob is the content of a file, in memory or in a file below the directory of the store.
type blob struct {
	sum  [32]byte
	size int64
	data []byte
	path string // empty if the content is in memory
}

func newBlob(data []byte) *blob {
	return &blob{sum: sha256.Sum256(data), size: int64(len(data)), data: data}
}

// receive reads the content of a new volume. Disk images are stored in files, if the store has a directory: QEMU needs
// them there, and they are large.
func (st *Store) receive(name string, from io.Reader) (*blob, error) {
	if st.files.Dir == "" || !strings.HasPrefix(name, "import/") {
		data, err := io.ReadAll(from)
		if err != nil {
			return nil, err
		}
		return newBlob(data), nil
	}
	out, err := os.CreateTemp(st.files.Dir, "image-")
	if err != nil {
		return nil, err
	}
	b, err := receiveFile(out, from)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		b.path = filepath.Join(st.files.Dir, "image-"+hex.EncodeToString(b.sum[:]))
		err = os.Rename(out.Name(), b.path)
	}
	if err != nil {
		_ = os.Remove(out.Name()) // the cause of the failure is more useful
		return nil, err
	}
	return b, nil
}

func receiveFile(out io.Writer, from io.Reader) (*blob, error) {
	b, sum := &blob{}, sha256.New()
	var err error
	b.size, err = io.Copy(io.MultiWriter(out, sum), from)
	copy(b.sum[:], sum.Sum(nil))
	return b, err
}

// open returns a reader of the content.
func (b *blob) open() (io.ReadCloser, error) {
	if b.path != "" {
		return os.Open(b.path)
	}
	return io.NopCloser(bytes.NewReader(b.data)), nil
}

// head returns the first n bytes, or less if there are not as many or they cannot be read.
func (b *blob) head(n int64) []byte {
	from, err := b.open()
	if err != nil {
		return nil
	}
	defer func() { _ = from.Close() }()
	out, _ := io.ReadAll(io.LimitReader(from, n)) // what could be read
	return out
}

// bytes returns the content.
func (b *blob) bytes() []byte {
	switch {
	case b == nil:
		return nil
	case b.path == "":
		return b.data
	}
	return b.head(b.size)
}
