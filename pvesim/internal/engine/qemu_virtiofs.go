// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// sharedDirectory is the directory mapping of a virtiofs option, whose key may be left out.
func sharedDirectory(value string) string {
	if id := qm.ParseFields(value)["dirid"]; id != "" {
		return id
	}
	first, _, _ := strings.Cut(value, ",")
	return first
}

// checkShares lets no VM start with a directory that is not mapped on its host: the config takes any name.
func (e *Engine) checkShares(g *Guest) error {
	for _, key := range slices.Sorted(maps.Keys(g.Config.Options)) {
		if stem(key) != "virtiofs" {
			continue
		}
		id := sharedDirectory(g.Config.Options[key])
		if !e.mappings["dir"].has(id) {
			return failf("directory mapping invalid: '%s' does not exist", id)
		}
		if len(e.mappedPaths("dir", id, g.Host)) == 0 {
			return failf("directory mapping invalid: '%s' has no path on node '%s'", id, g.Host)
		}
	}
	return nil
}

// mappedPaths lists the paths of a mapping on a host, in its order.
func (e *Engine) mappedPaths(kind, id, host string) []string {
	var paths []string
	entries, _ := e.mappings[kind].field(id, "map").([]string)
	for _, entry := range entries {
		if fields := qm.ParseFields(entry); fields["node"] == host {
			paths = append(paths, fields["path"])
		}
	}
	return paths
}

// checkMappings looks whether the caller may use all mappings that a config names.
func (e *Engine) checkMappings(r *Request, config map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(config)) {
		path := ""
		switch stem(key) {
		case "hostpci":
			path = "/mapping/pci/" + qm.ParseFields(config[key])["mapping"]
		case "usb":
			path = "/mapping/usb/" + qm.ParseFields(config[key])["mapping"]
		case "virtiofs":
			path = "/mapping/dir/" + sharedDirectory(config[key])
		}
		if path == "" || strings.HasSuffix(path, "/") {
			continue
		}
		if err := e.need(r, path, "Mapping.Use"); err != nil {
			return err
		}
	}
	return nil
}
