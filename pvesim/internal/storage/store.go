// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package storage holds the storages of the cluster and their volumes, and serves their API.
package storage

import (
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
)

// Store holds storages and volumes. The caller of a method holds the mutex of the kernel unless its comment states
// otherwise.
type Store struct {
	k        *kernel.Kernel
	latency  map[string]Latency // by storage type
	storages []*Storage
	volumes  map[string]*Volume // by volumeKey
	blobs    map[[32]byte][]byte
}

// New returns an empty store. Types that are missing in latency have the latencies of their default profile.
func New(k *kernel.Kernel, latency map[string]Latency) *Store {
	return &Store{k: k, latency: latency, volumes: map[string]*Volume{}, blobs: map[[32]byte][]byte{}}
}

// Handlers by kind of object.
type (
	definitions struct{ *Store }
	contents    struct {
		*Store
		allocator *Allocator
	}
	files struct{ *Store }
)

// Routes returns the handlers of storages by method.
func (st *Store) Routes() map[string]api.Handler {
	d, ct, f := definitions{st}, contents{st, NewAllocator(st)}, files{st}
	const storage = "/nodes/{node}/storage"
	return map[string]api.Handler{
		"GET /storage":                                      d.getDefinitions,
		"POST /storage":                                     d.postDefinition,
		"GET /storage/{storage}":                            d.getDefinition,
		"PUT /storage/{storage}":                            d.putDefinition,
		"DELETE /storage/{storage}":                         d.deleteDefinition,
		"GET " + storage:                                    d.getStorages,
		"GET " + storage + "/{storage}":                     api.Index("subdir", "content", "status", "upload", "download-url"),
		"GET " + storage + "/{storage}/status":              d.getStorageStatus,
		"GET " + storage + "/{storage}/content":             ct.getContent,
		"POST " + storage + "/{storage}/content":            ct.postContent,
		"GET " + storage + "/{storage}/content/{volume}":    ct.getVolume,
		"DELETE " + storage + "/{storage}/content/{volume}": ct.deleteVolume,
		"POST " + storage + "/{storage}/upload":             f.postUpload,
		"POST " + storage + "/{storage}/download-url":       f.postDownload,
		"GET /nodes/{node}/query-url-metadata":              f.getURLMetadata,
	}
}
