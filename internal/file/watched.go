// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package file finds changes of configuration files.
package file

import (
	"bytes"
	"os"
)

// Watched is a file whose content may change. Its content is compared instead of watching file
// events, because a mounted ConfigMap or Secret is replaced by changing symbolic links above it.
type Watched[T any] struct {
	Path string

	load    func(path string) (T, error)
	content []byte
	problem string
}

// Watch returns a Watched with the current content. load returns an error if the file is invalid.
func Watch[T any](path string, load func(path string) (T, error)) *Watched[T] {
	content, _ := os.ReadFile(path) // load reports the error
	return &Watched[T]{Path: path, load: load, content: content}
}

// Changed reports whether the file has another, valid content since the last change, and returns it.
// If the file is missing or invalid, it returns the error, but each error only once.
func (w *Watched[T]) Changed() (value T, changed bool, err error) {
	content, err := os.ReadFile(w.Path)
	if err == nil && bytes.Equal(content, w.content) {
		w.problem = ""
		return value, false, nil
	}
	if value, err = w.load(w.Path); err == nil {
		w.content, w.problem = content, ""
		return value, true, nil
	}
	if w.problem == err.Error() {
		return value, false, nil
	}
	w.problem = err.Error()
	return value, false, err
}
