// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// firmwareArgument is an argument of QEMU that passes a file to the fw_cfg interface of the guest.
var firmwareArgument = regexp.MustCompile(`-fw_cfg\s+(?:name=)?([^,\s]+),(file|string)=((?:,,|[^,\s])*)`)

// firmwareFiles returns the fw_cfg files of a VM by name. The content of files that do not exist is nil; QEMU does not
// start with them.
func (dv *devices) firmwareFiles(g *kernel.Guest) map[string][]byte {
	var out map[string][]byte
	for _, m := range firmwareArgument.FindAllStringSubmatch(g.Config.Options["args"], -1) {
		value := strings.ReplaceAll(m[3], ",,", ",") // a comma in a value is doubled
		content := []byte(value)
		if m[2] == "file" {
			content = dv.store.ReadHostFile(g.Host, value)
		}
		if out == nil {
			out = map[string][]byte{}
		}
		out[m[1]] = content
	}
	return out
}

func (dv *devices) checkFirmwareFiles(t *tasks.Task, g *kernel.Guest) error {
	files := dv.firmwareFiles(g)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if files[name] == nil {
			t.Logf("kvm: -fw_cfg name=%s: can't load the file", name)
			return api.Failf("start failed: QEMU exited with code 1")
		}
	}
	return nil
}
