// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// cloudInit looks whether the Host has what Proxmox makes the VM's cloud-init drive of,
// and on. Proxmox takes any snippet's name, and the VM then fails to start.
func cloudInit(z zone) *finding {
	if z.config != nil {
		storage, added := vmconfig.CloudInitStorage(z.class, *z.config)
		row, ok := z.row(storage)
		content := strings.Join(row.Content, ",")
		switch {
		case !added:
		case !ok:
			return z.onHost("storage %q, for the cloud-init drive that the template lacks, is not on this host", storage)
		case !slices.Contains(row.Content, "images"):
			return z.onHost("storage %q takes %s but no disk images, and the cloud-init drive that the template lacks is one; name another in spec.metadataOptions.cloudInit.storage, "+
				"or run: pvesm set %s --content images,%s", storage, content, storage, content)
		}
	}
	snippets := vmconfig.Snippets(z.class, z.config)
	for _, kind := range slices.Sorted(maps.Keys(snippets)) {
		if f := snippet(z, kind, snippets[kind]); f != nil {
			return f
		}
	}
	return nil
}

// snippet looks whether a file is there, as far as Proxmox tells: it lists snippets only
// to those who may also delete the storage's definition, and most tokens may not.
func snippet(z zone, kind, volume string) *finding {
	storage, name, _ := strings.Cut(volume, ":")
	row, ok := z.row(storage)
	content := strings.Join(row.Content, ",")
	if !ok {
		return z.onHost("the %s snippet %s is on storage %q, which is not on this host", kind, volume, storage)
	}
	if !slices.Contains(row.Content, "snippets") {
		return z.onHost("the %s snippet %s is on storage %q, which takes %s but no snippets; run: pvesm set %s --content snippets,%s", kind, volume, storage, content, storage, content)
	}
	if !z.facts().Permissions.Has("/storage/"+storage, "Datastore.Allocate") {
		return nil
	}
	listed, known := z.facts().Snippets[inventory.StorageKey{Host: z.host, Storage: storage}]
	switch {
	case !known:
		f := z.onHost("the snippets of storage %q were not looked up yet", storage)
		f.unknown = true
		return f
	case !listed[volume]:
		return z.onHost("the %s snippet %s is not there; on the host, put the file %s into the snippets of storage %s, or name another", kind, volume, path.Base(name), storage)
	}
	return nil
}

// row of a storage on this Host.
func (z zone) row(storage string) (proxmox.StorageRow, bool) {
	row, ok := z.snapshot.Storages[inventory.StorageKey{Host: z.host, Storage: storage}]
	return row, ok
}

// snippetFacts are the lists of snippets that the verdict on a zone's storages rests on.
func snippetFacts(z zone) []inventory.Fact {
	var out []inventory.Fact
	for _, volume := range vmconfig.Snippets(z.class, z.config) {
		storage, _, _ := strings.Cut(volume, ":")
		out = append(out, inventory.FactSnippets(inventory.StorageKey{Host: z.host, Storage: storage}))
	}
	return out
}
