// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storageselection finds the storages of a Host that a disk of a NodeClass may
// use. A Selector evaluates the fields storage, storages and storageSelector of the disk.
package storageselection

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/cel-go/cel"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// imagesContent is the content type that a storage needs to hold VM disks.
const imagesContent = "images"

// Selector finds the storages for a disk.
type Selector struct {
	selection v1alpha1.StorageSelection
	// program is the compiled storageSelector, and err why it is invalid.
	program cel.Program
	err     error
}

// New returns the Selector of a disk. Keep it to search several Hosts: a storageSelector is
// compiled here.
func New(selection v1alpha1.StorageSelection) Selector {
	s := Selector{selection: selection}
	if selection.Selector != "" {
		s.program, _, s.err = environment.Compile(selection.Selector, cel.BoolType)
	}
	return s
}

// Find is New(selection).Find.
func Find(snapshot *observed.Snapshot, host string, selection v1alpha1.StorageSelection) ([]string, error) {
	return New(selection).Find(snapshot, host)
}

// Find returns the storages of a Host that the disk may use: in order of preference if the
// disk lists them, else by name. It returns no storage and no error if the disk names
// none. It returns an *ExpressionError if the selector is invalid, and another error if
// the Host has no such storage.
func (s Selector) Find(snapshot *observed.Snapshot, host string) ([]string, error) {
	selection := s.selection
	switch {
	case selection.Selector != "":
		return s.findSelected(snapshot, host)
	case len(selection.Storages) > 0:
		return findListed(snapshot, host, selection)
	case selection.Storage != "":
		return findNamed(snapshot, host, selection)
	}
	return nil, nil
}

func findNamed(snapshot *observed.Snapshot, host string, selection v1alpha1.StorageSelection) ([]string, error) {
	storage := selection.Storage
	row, ok := snapshot.Storages[observed.StorageKey{Host: host, Storage: storage}]
	content := strings.Join(row.Content, ",")
	switch {
	case !ok:
		return nil, fmt.Errorf("%s.storage %q is not on this host, which has %s", selection.Field, storage, strings.Join(snapshot.StoragesOf(host), ", "))
	case !slices.Contains(row.Content, imagesContent):
		return nil, fmt.Errorf("%s.storage %q has the content types %s, but not images; run: pvesm set %s --content images,%s", selection.Field, storage, content, storage, content)
	}
	return []string{storage}, nil
}

func findListed(snapshot *observed.Snapshot, host string, selection v1alpha1.StorageSelection) ([]string, error) {
	var found []string
	for _, storage := range selection.Storages {
		row := snapshot.Storages[observed.StorageKey{Host: host, Storage: storage}]
		if slices.Contains(row.Content, imagesContent) && !slices.Contains(found, storage) {
			found = append(found, storage)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s.storages lists %s, none of which is on this host with the content type images; the host has %s",
			selection.Field, strings.Join(selection.Storages, ", "), describe(imageStorages(snapshot, host)))
	}
	return found, nil
}

func (s Selector) findSelected(snapshot *observed.Snapshot, host string) ([]string, error) {
	selection := s.selection
	if s.err != nil {
		return nil, &ExpressionError{selection.Field + ".storageSelector", selection.Selector, s.err}
	}
	rows := imageStorages(snapshot, host)
	var found []string
	for _, row := range rows {
		selected, err := isSelected(s.program, row)
		if err != nil {
			return nil, fmt.Errorf("%s.storageSelector %q failed for storage %s: %w", selection.Field, selection.Selector, row.Name, err)
		}
		if selected {
			found = append(found, row.Name)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s.storageSelector %q selects no storage of this host with the content type images; the host has %s",
			selection.Field, selection.Selector, describe(rows))
	}
	return found, nil
}

// imageStorages returns the storages of a Host that accept disks, sorted by name.
func imageStorages(snapshot *observed.Snapshot, host string) []proxmox.StorageRow {
	var rows []proxmox.StorageRow
	for _, name := range snapshot.StoragesOf(host) {
		if row := snapshot.Storages[observed.StorageKey{Host: host, Storage: name}]; slices.Contains(row.Content, imagesContent) {
			rows = append(rows, row)
		}
	}
	return rows
}

// describe returns the names of storages with what selectors can refer to, except for the
// free capacity: conditions quote the text, and would change with each poll.
func describe(rows []proxmox.StorageRow) string {
	if len(rows) == 0 {
		return "none"
	}
	texts := make([]string, 0, len(rows))
	for _, row := range rows {
		kind := row.Type
		if row.Shared {
			kind += ", shared"
		}
		texts = append(texts, fmt.Sprintf("%s (%s)", row.Name, kind))
	}
	return strings.Join(texts, ", ")
}
