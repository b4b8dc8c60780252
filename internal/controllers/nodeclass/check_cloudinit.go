// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// checkCloudInit checks whether the Host has the storage and the snippets of the
// cloud-init drive that Proxmox generates. Proxmox accepts any snippet name, and the VM
// then fails to start.
func checkCloudInit(z zone) *problem {
	if z.config != nil {
		storage := vmconfig.AddedCloudInitStorage(z.class, *z.config)
		row, ok := z.storageRow(storage)
		content := strings.Join(row.Content, ",")
		switch {
		case storage == "":
		case !ok:
			return z.hostProblem("storage %q for the cloud-init drive, which the template lacks, is not on this host", storage)
		case !slices.Contains(row.Content, "images"):
			return z.hostProblem("storage %q has the content types %s, but not images, which the missing cloud-init drive needs; set another one in spec.metadataOptions.cloudInit.storage, "+
				"or run: pvesm set %s --content images,%s", storage, content, storage, content)
		}
	}
	snippets := vmconfig.Snippets(z.class, z.config)
	for _, kind := range slices.Sorted(maps.Keys(snippets)) {
		if p := checkSnippet(z, kind, snippets[kind]); p != nil {
			return p
		}
	}
	return nil
}

// checkSnippet checks whether a snippet exists, if the token may list it: Proxmox lists
// snippets only with Datastore.Allocate, which most tokens lack.
func checkSnippet(z zone, kind, volume string) *problem {
	storage, name, _ := strings.Cut(volume, ":")
	row, ok := z.storageRow(storage)
	content := strings.Join(row.Content, ",")
	if !ok {
		return z.hostProblem("the %s snippet %s is on storage %q, which is not on this host", kind, volume, storage)
	}
	if !slices.Contains(row.Content, "snippets") {
		return z.hostProblem("the %s snippet %s is on storage %q, which has the content types %s, but not snippets; run: pvesm set %s --content snippets,%s", kind, volume, storage, content, storage, content)
	}
	if !z.facts().Permissions.Has("/storage/"+storage, "Datastore.Allocate") {
		return nil
	}
	key := observed.StorageKey{Host: z.host, Storage: storage}
	listed, known := z.facts(poll.FactSnippets(key)).Snippets[key]
	switch {
	case !known:
		p := z.hostProblem("the snippets of storage %q have not been read yet", storage)
		p.unknown = true
		return p
	case !listed[volume]:
		return z.hostProblem("the %s snippet %s does not exist; on the host, copy the file %s to the snippets of storage %s, or set another snippet", kind, volume, path.Base(name), storage)
	}
	return nil
}
