// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// maxFileBytes bounds what one compressed entry may unpack to.
const maxFileBytes = 16 << 20

// writeFile is an entry of cloud-config's write_files.
type writeFile struct {
	Path        string    `yaml:"path"`
	Content     string    `yaml:"content"`
	Encoding    string    `yaml:"encoding"`
	Permissions yaml.Node `yaml:"permissions"`
	Append      bool      `yaml:"append"`
}

// write puts the file on the guest's disk.
func (f writeFile) write(disk pvesim.GuestDisk) error {
	if !path.IsAbs(f.Path) {
		return fmt.Errorf("path %q is not absolute", f.Path)
	}
	content, err := f.decode()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	if err := f.checkMode(); err != nil {
		return fmt.Errorf("%s: %w", f.Path, err)
	}
	name := path.Clean(f.Path)
	if f.Append {
		existing, _ := disk.Read(name)
		content = append(bytes.Clone(existing), content...)
	}
	disk.Write(name, content)
	return nil
}

// decode undoes the encodings that cloud-init knows, under all of their names.
func (f writeFile) decode() ([]byte, error) {
	content := []byte(f.Content)
	encoding := strings.ToLower(strings.TrimSpace(f.Encoding))
	for layer := range strings.SplitSeq(reversed(encoding), "+") {
		var err error
		switch layer {
		case "", "text/plain":
		case "b64", "base64":
			// Blanks and line ends may separate the digits.
			content, err = base64.StdEncoding.DecodeString(strings.Join(strings.Fields(string(content)), ""))
		case "gz", "gzip":
			content, err = gunzip(content)
		default:
			return nil, fmt.Errorf("unknown encoding %q", f.Encoding)
		}
		if err != nil {
			return nil, fmt.Errorf("encoding %s: %w", f.Encoding, err)
		}
	}
	return content, nil
}

// reversed turns gz+b64 into b64+gz: what was done last is undone first.
func reversed(encoding string) string {
	outer, inner, found := strings.Cut(encoding, "+")
	if !found {
		return encoding
	}
	return inner + "+" + outer
}

func gunzip(content []byte) ([]byte, error) {
	reader, err := gzip.NewReader(bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(reader, maxFileBytes))
}

// checkMode accepts a quoted octal number, or a bare one, which YAML has read as
// octal already.
func (f writeFile) checkMode() error {
	if f.Permissions.IsZero() {
		return nil
	}
	if _, err := strconv.ParseUint(strings.TrimPrefix(f.Permissions.Value, "0o"), 8, 16); err != nil {
		return fmt.Errorf("permissions %q are not an octal number", f.Permissions.Value)
	}
	return nil
}
