// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/sha1" //nolint:gosec // Proxmox's digests are SHA-1
	"encoding/hex"
	"fmt"
)

func NewRow(m map[string]string) Row {
	out := Row{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// EmptyList answers for objects that the cluster has none of.
func EmptyList(context.Context, *Request) (Response, error) {
	return Response{Data: []Row{}}, nil
}

// digest of an absent section is the digest of an empty file.
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

// Index answers the sub-directories of a path.
func Index(key string, names ...string) Handler {
	rows := make([]Row, 0, len(names))
	for _, n := range names {
		rows = append(rows, Row{key: n})
	}
	return func(context.Context, *Request) (Response, error) { return Response{Data: rows}, nil }
}

// Row is an object in a response.
type Row = map[string]any

func BoolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
