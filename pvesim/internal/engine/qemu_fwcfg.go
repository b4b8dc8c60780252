// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"regexp"
	"strings"
)

// firmwareArgument is an argument of QEMU that hands something to the guest's firmware interface.
var firmwareArgument = regexp.MustCompile(`-fw_cfg\s+(?:name=)?([^,\s]+),(file|string)=((?:,,|[^,\s])*)`)

// firmwareFiles reads what a VM's args hand to its guest, by name. A file that is not there is nil: QEMU does not start.
func (e *Engine) firmwareFiles(g *Guest) map[string][]byte {
	var out map[string][]byte
	for _, m := range firmwareArgument.FindAllStringSubmatch(g.Config.Options["args"], -1) {
		value := strings.ReplaceAll(m[3], ",,", ",") // a comma ends a value, two are one
		content := []byte(value)
		if m[2] == "file" {
			content = e.hostFile(g.Host, value)
		}
		if out == nil {
			out = map[string][]byte{}
		}
		out[m[1]] = content
	}
	return out
}

// hostFile reads a file of the host's storages by its path.
func (e *Engine) hostFile(host, path string) []byte {
	for _, v := range e.volumes {
		if v.Blob == nil || (v.Host != "" && v.Host != host) {
			continue
		}
		if s := e.storage(v.Storage); s != nil && s.availableOn(host) && s.file(v.Name) == path {
			return e.blobs[*v.Blob]
		}
	}
	return nil
}
