// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package storageselection_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/storageselection"
)

const gib = int64(1) << 30

func newSnapshot() *observed.Snapshot {
	s := &observed.Snapshot{Storages: map[observed.StorageKey]proxmox.StorageRow{}}
	for _, row := range []proxmox.StorageRow{
		{Name: "local", Type: "dir", Content: []string{"iso"}},
		{Name: "fast", Type: "zfspool", Content: []string{"images"}, TotalBytes: 100 * gib, UsedBytes: 60 * gib},
		{Name: "tank", Type: "zfspool", Content: []string{"images"}, TotalBytes: 900 * gib},
		{Name: "ceph", Type: "rbd", Content: []string{"images"}, TotalBytes: 900 * gib, Shared: true},
	} {
		row.Host = "pve1"
		s.Storages[observed.StorageKey{Host: "pve1", Storage: row.Name}] = row
	}
	return s
}

func TestFind(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		selection v1alpha1.StorageSelection
		want      []string
		err       string
		invalid   bool
	}{
		"none":               {},
		"storage":            {selection: v1alpha1.StorageSelection{Storage: "fast"}, want: []string{"fast"}},
		"missing_storage":    {selection: v1alpha1.StorageSelection{Storage: "nas"}, err: `spec.disks[name=data].storage "nas" is not on this host, which has ceph, fast, local, tank`},
		"storage_for_ISOs":   {selection: v1alpha1.StorageSelection{Storage: "local"}, err: `spec.disks[name=data].storage "local" has the content types iso, but not images; run: pvesm set local --content images,iso`},
		"storages":           {selection: v1alpha1.StorageSelection{Storages: []string{"tank", "nas", "local", "ceph", "tank"}}, want: []string{"tank", "ceph"}},
		"no_storage_of_list": {selection: v1alpha1.StorageSelection{Storages: []string{"nas", "local"}}, err: "spec.disks[name=data].storages lists nas, local, none of which is on this host with the content type images; the host has ceph (rbd, shared), fast (zfspool), tank (zfspool)"},
		"type":               {selection: v1alpha1.StorageSelection{Selector: "storage.type == 'zfspool'"}, want: []string{"fast", "tank"}},
		"free":               {selection: v1alpha1.StorageSelection{Selector: "storage.free > 40 * Gi && !storage.shared"}, want: []string{"tank"}},
		"name":               {selection: v1alpha1.StorageSelection{Selector: "storage.name.startsWith('ce') || storage.name in ['fast']"}, want: []string{"ceph", "fast"}},
		"nothing_selected": {selection: v1alpha1.StorageSelection{Selector: "storage.free > 2 * Ti"},
			err: `spec.disks[name=data].storageSelector "storage.free > 2 * Ti" selects no storage of this host with the content type images; the host has ceph (rbd, shared), fast (zfspool), tank (zfspool)`},
		"unknown_field": {selection: v1alpha1.StorageSelection{Selector: "storage.size > 1"}, invalid: true,
			err: `spec.disks[name=data].storageSelector "storage.size > 1" is invalid: 1:1: undeclared reference to 'storage' (in container ''); want a CEL expression over storage.name, storage.type, storage.free (bytes) and storage.shared that is true or false`},
		"not_a_condition": {selection: v1alpha1.StorageSelection{Selector: "storage.name"}, invalid: true,
			err: `spec.disks[name=data].storageSelector "storage.name" is invalid: its type is string, want bool; want a CEL expression over storage.name, storage.type, storage.free (bytes) and storage.shared that is true or false`},
	} {
		c.selection.Field = "spec.disks[name=data]"
		selector := storageselection.New(c.selection)
		for range 2 {
			got, err := selector.Find(newSnapshot(), "pve1")
			text := ""
			if err != nil {
				text = err.Error()
			}
			if _, invalid := errors.AsType[*storageselection.ExpressionError](err); !slices.Equal(got, c.want) || text != c.err || invalid != c.invalid {
				t.Errorf("%s: found %q (%v), want %q (%s)", name, got, err, c.want, c.err)
			}
		}
	}
}
