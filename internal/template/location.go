// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// Place is where a Template has to be: on each Host, or on one of those that share
// its storage.
type Location struct {
	Region, Host string
	// Storage takes the Template, Images the file that it is made from.
	Storage, Images string
	// Shared says that the Template serves every Host that has the storage.
	Shared bool
	// Problem tells why none can be made there now, and what to do about it.
	Problem string
}

// fileStorages can take images to import, baseStorages can make a template of a disk:
// thick LVM and iSCSI cannot.
var (
	fileStorages = []string{"dir", "nfs", "cifs", "cephfs", "btrfs", "glusterfs"}
	baseStorages = []string{"lvmthin", "zfspool", "rbd", "dir", "nfs", "cifs", "btrfs", "cephfs", "glusterfs", "zfs"}
)

// Places lists where the Templates of a wish have to be, by region and Host. Found is
// what there is of them: a shared one stays on its Host as long as that is there.
func Locations(view inventory.View, w Desired, found []Existing) []Location {
	var places []Location
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		if w.wants(region) {
			places = append(places, placesIn(view.Snapshots[region], w, found)...)
		}
	}
	return places
}

func placesIn(snapshot *inventory.Snapshot, w Desired, found []Existing) []Location {
	var places []Location
	shared := map[string]int{} // by storage: where in places
	for _, host := range slices.Sorted(maps.Keys(snapshot.Hosts)) {
		place := placeOn(snapshot, host, w.Spec.StorageIDs)
		if !place.Shared {
			places = append(places, place)
			continue
		}
		n, ok := shared[place.Storage]
		if !ok {
			shared[place.Storage] = len(places)
			places = append(places, place)
			continue
		}
		if better(snapshot, w, found, place, places[n]) {
			places[n] = place
		}
	}
	slices.SortFunc(places, func(a, b Location) int { return cmp.Compare(a.Host, b.Host) })
	return places
}

// better tells whether a shared Template belongs to another Host than thought: where
// there is one already, else where one can be made.
func better(snapshot *inventory.Snapshot, w Desired, found []Existing, place, than Location) bool {
	rank := func(p Location) int {
		has := slices.ContainsFunc(found, func(f Existing) bool {
			return f.Region == p.Region && f.Host == p.Host && w.made(f.Mark) && storageOf(f) == p.Storage
		})
		switch {
		case has && snapshot.Hosts[p.Host].Online:
			return 2
		case p.Problem == "":
			return 1
		}
		return 0
	}
	return rank(place) > rank(than)
}

func storageOf(f Existing) string {
	disk, _ := f.Config.Drives().Boot()
	return disk.Storage
}

// placeOn finds the storages of a Host: the first that takes images to import, and
// the first that can hold a template.
func placeOn(snapshot *inventory.Snapshot, host string, ids []string) Location {
	place := Location{Region: snapshot.Region, Host: host}
	var here []proxmox.StorageRow
	for _, id := range ids {
		row, ok := snapshot.Storages[inventory.StorageKey{Host: host, Storage: id}]
		if !ok {
			continue
		}
		here = append(here, row)
		if place.Images == "" && slices.Contains(row.Content, "import") {
			place.Images = id
		}
		if place.Storage == "" && slices.Contains(row.Content, "images") && slices.Contains(baseStorages, row.Type) {
			place.Storage, place.Shared = id, row.Shared
		}
	}
	place.Problem = problemOn(snapshot, place, ids, here)
	return place
}

func problemOn(snapshot *inventory.Snapshot, place Location, ids []string, here []proxmox.StorageRow) string {
	if !snapshot.Hosts[place.Host].Online {
		return "the host is offline; its template is made when it is back"
	}
	if len(here) == 0 {
		return fmt.Sprintf("none of spec.storageIDs (%s) is on this host; name one that is, see: pvesm status", strings.Join(ids, ", "))
	}
	if place.Images == "" {
		return lacksImport(here)
	}
	if place.Storage == "" {
		return lacksImages(here)
	}
	for _, row := range here {
		if !row.Available && (row.Name == place.Images || row.Name == place.Storage) {
			return fmt.Sprintf("storage %s is not active on this host; look there with: pvesm status --storage %s", row.Name, row.Name)
		}
	}
	return ""
}

// lacksImport says how to let a storage take images. The command names all content:
// Proxmox replaces the list, and what is left out is lost.
func lacksImport(here []proxmox.StorageRow) string {
	for _, row := range here {
		if slices.Contains(fileStorages, row.Type) {
			return fmt.Sprintf("no storage of spec.storageIDs takes import content, which the image needs; run: pvesm set %s --content %s",
				row.Name, strings.Join(append([]string{"import"}, row.Content...), ","))
		}
	}
	return fmt.Sprintf("no storage of spec.storageIDs (%s) can take import content, which the image needs; add one that holds files, for example local, and run: pvesm set local --content import,iso,vztmpl,backup",
		strings.Join(names(here), ", "))
}

func lacksImages(here []proxmox.StorageRow) string {
	for _, row := range here {
		if slices.Contains(baseStorages, row.Type) {
			return fmt.Sprintf("no storage of spec.storageIDs takes disk images, which the template needs; run: pvesm set %s --content %s",
				row.Name, strings.Join(append([]string{"images"}, row.Content...), ","))
		}
	}
	return fmt.Sprintf("no storage of spec.storageIDs (%s) can hold a template: thick LVM and iSCSI make no base volumes; add another one",
		strings.Join(names(here), ", "))
}

func names(rows []proxmox.StorageRow) []string {
	var out []string
	for _, row := range rows {
		out = append(out, row.Name)
	}
	return out
}

// has tells whether a Template is the one that a place asks for.
func (p Location) has(w Desired, f Existing) bool {
	return f.Region == p.Region && f.Host == p.Host && w.made(f.Mark)
}
