// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ISOStorage returns the storage of a Host for boot drives: the requested one, or the
// first by name with iso content, local storages before shared ones. field is the field
// that requests one. It fails if the Host has none.
func ISOStorage(snapshot *observed.Snapshot, host, field, requested string) (string, error) {
	var candidates []proxmox.StorageRow
	for key, row := range snapshot.Storages {
		if key.Host == host && slices.Contains(row.Content, "iso") && row.Available && (requested == "" || requested == key.Storage) {
			candidates = append(candidates, row)
		}
	}
	if len(candidates) == 0 {
		return "", errors.New(missingISOStorage(snapshot, host, field, requested))
	}
	slices.SortFunc(candidates, func(a, b proxmox.StorageRow) int {
		if a.Shared != b.Shared {
			if a.Shared {
				return 1
			}
			return -1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return candidates[0].Name, nil
}

// missingISOStorage explains why a Host has no storage for boot drives, and how to get
// one. The command contains all content types: Proxmox replaces the list.
func missingISOStorage(snapshot *observed.Snapshot, host, field, requested string) string {
	const hint = "run: pvesm set %s --content %s"
	if requested != "" {
		row, ok := snapshot.Storages[observed.StorageKey{Host: host, Storage: requested}]
		content := strings.Join(row.Content, ",")
		switch {
		case !ok:
			return fmt.Sprintf("%s %q is not on this host, which has %s", field, requested, strings.Join(snapshot.StoragesOf(host), ", "))
		case slices.Contains(row.Content, "iso"):
			return fmt.Sprintf("%s %q is not available", field, requested)
		case !row.HasFiles():
			return fmt.Sprintf("%s %q is of type %s, which takes no iso content; name one that holds files", field, requested, row.Type)
		}
		return fmt.Sprintf("%s %q has the content types %s, but not iso; "+hint, field, requested, content, requested, "iso,"+content)
	}
	var found proxmox.StorageRow
	for key, row := range snapshot.Storages {
		if key.Host == host && row.HasFiles() && (found.Name == "" || row.Name < found.Name) {
			found = row
		}
	}
	const none = "no storage takes iso content, which the boot drive needs; "
	if found.Name == "" {
		return none + "run: pvesm add dir iso --path /var/lib/iso --content iso"
	}
	return none + fmt.Sprintf(hint, found.Name, strings.Join(append([]string{"iso"}, found.Content...), ","))
}
