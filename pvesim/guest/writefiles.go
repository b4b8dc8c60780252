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

// maxFileBytes limits the decompressed size of an entry.
const maxFileBytes = 16 << 20

// writeFile is an entry of cloud-config's write_files.
type writeFile struct {
	Path        string    `yaml:"path"`
	Content     string    `yaml:"content"`
	Encoding    string    `yaml:"encoding"`
	Permissions yaml.Node `yaml:"permissions"`
	Append      bool      `yaml:"append"`
}

// write writes the file to the guest's disk.
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

// decode decodes the content. It accepts all encodings of cloud-init and their
// aliases.
func (f writeFile) decode() ([]byte, error) {
	content := []byte(f.Content)
	encoding := strings.ToLower(strings.TrimSpace(f.Encoding))
	for layer := range strings.SplitSeq(reversed(encoding), "+") {
		var err error
		switch layer {
		case "", "text/plain":
		case "b64", "base64":
			// Base64 data may contain whitespace.
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

// reversed returns the encodings in decoding order: b64 and gz for gz+b64.
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

// checkMode accepts a quoted octal number, or an unquoted one, which YAML parses as
// octal.
func (f writeFile) checkMode() error {
	if f.Permissions.IsZero() {
		return nil
	}
	if _, err := strconv.ParseUint(strings.TrimPrefix(f.Permissions.Value, "0o"), 8, 16); err != nil {
		return fmt.Errorf("permissions %q are not an octal number", f.Permissions.Value)
	}
	return nil
}
