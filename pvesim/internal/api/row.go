// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
)

// Row is an object in a response.
type Row = map[string]any

// NewRow returns a row with the given fields.
func NewRow(m map[string]string) Row {
	out := Row{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// BoolInt returns a boolean as Proxmox sends it: 0 or 1.
func BoolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Digest returns the digest of sections of a config file. Empty sections do not count.
func Digest(v ...any) string {
	text := ""
	for _, x := range v {
		if t := fmt.Sprint(x); t != "map[]" && t != "[]" {
			text += t
		}
	}
	sum := sha1.Sum([]byte(text)) //nolint:gosec // see the import
	return hex.EncodeToString(sum[:])
}

// Index returns a handler that lists the subdirectories of a path.
func Index(key string, names ...string) Handler {
	rows := make([]Row, 0, len(names))
	for _, n := range names {
		rows = append(rows, Row{key: n})
	}
	return func(context.Context, *Request) (Response, error) { return Response{Data: rows}, nil }
}

// EmptyList serves lists of objects that the simulator does not have.
func EmptyList(context.Context, *Request) (Response, error) {
	return Response{Data: []Row{}}, nil
}
