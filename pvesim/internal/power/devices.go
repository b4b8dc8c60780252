// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/mapping"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/storage"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// maxHostPCI is the number of hostpci slots.
const maxHostPCI = 16

// devices checks and reserves the resources of a host that a VM needs to start.
type devices struct {
	k        *kernel.Kernel
	store    *storage.Store
	mappings *mapping.Mappings
}

// reservePCI reserves the devices of a VM that starts. Of a mapping, it reserves the first free device on the host.
func (dv *devices) reservePCI(g *kernel.Guest) error {
	g.PCI = nil
	for n := range maxHostPCI {
		value, ok := g.Config.Options["hostpci"+strconv.Itoa(n)]
		if !ok {
			continue
		}
		fields := qm.ParseFields(value)
		if fields["mdev"] != "" {
			continue
		}
		candidates := []string{fields["host"]}
		if fields["host"] == "" {
			candidates = []string{strings.Split(value, ",")[0]}
		}
		if id := fields["mapping"]; id != "" {
			if candidates = dv.mappings.Paths("pci", id, g.Host); len(candidates) == 0 {
				return api.Failf("PCI device mapping not found for '%s'", id)
			}
		}
		if err := dv.reserveFirstFree(g, candidates); err != nil {
			return err
		}
	}
	return nil
}

// reserveFirstFree reserves the first free candidate.
func (dv *devices) reserveFirstFree(g *kernel.Guest, candidates []string) error {
	for _, path := range candidates {
		if dv.pciOwner(g.Host, path) == 0 && !slices.Contains(g.PCI, path) {
			g.PCI = append(g.PCI, path)
			return nil
		}
	}
	path := candidates[len(candidates)-1]
	if owner := dv.pciOwner(g.Host, path); owner != 0 {
		return api.Failf("PCI device '%s' already in use by VMID '%d'", path, owner)
	}
	return api.Failf("PCI device '%s' is used twice", path)
}

// pciOwner returns the VM that has reserved a device, or 0.
func (dv *devices) pciOwner(host, path string) int {
	for _, other := range dv.k.Guests {
		if other.Host == host && slices.Contains(other.PCI, path) {
			return other.VMID
		}
	}
	return 0
}

// maxNUMA is the number of numaN options.
const maxNUMA = 8

// checkNUMA checks numa, numaN and hugepages. Proxmox checks them at start and not when they are set.
func (dv *devices) checkNUMA(g *kernel.Guest) error {
	pages := g.Config.Options["hugepages"]
	if !g.Config.Bool("numa", false) {
		if pages != "" {
			return api.Failf("numa needs to be enabled to use hugepages")
		}
		return nil
	}
	var total int64
	found := false
	for i := range maxNUMA {
		v, ok := g.Config.Options["numa"+strconv.Itoa(i)]
		if !ok {
			continue
		}
		found = true
		memory, err := dv.checkNUMANode(g, i, qm.ParseFields(v), pages)
		if err != nil {
			return err
		}
		total += memory
	}
	memory := g.Config.Int("memory", 512)
	if found && total != memory {
		return api.Failf("total memory for NUMA nodes must be equal to vm static memory")
	}
	if !found {
		return checkHugepages(memory/max(1, g.Config.Int("sockets", 1)), pages)
	}
	return nil
}

// checkNUMANode checks a numaN option and returns its memory.
func (dv *devices) checkNUMANode(g *kernel.Guest, i int, fields map[string]string, pages string) (int64, error) {
	memory := qm.Number(fields["memory"], 0)
	if memory == 0 {
		return 0, api.Failf("missing NUMA node%d memory value", i)
	}
	hosts := parseNUMANodes(fields["hostnodes"])
	for _, n := range hosts {
		if int(n) >= max(dv.k.Host(g.Host).NUMANodes, 1) {
			return 0, api.Failf("host NUMA node%d doesn't exist", n)
		}
	}
	switch {
	case len(hosts) > 0 && fields["policy"] == "":
		return 0, api.Failf("you need to define a policy for hostnode %s", fields["hostnodes"])
	case pages != "" && len(hosts) == 0:
		return 0, api.Failf("numa hostnodes need to be defined to use hugepages")
	case pages != "" && len(hosts) > 1:
		return 0, api.Failf("only 1 hostnode value allowed per numa node with hugepages")
	}
	return memory, checkHugepages(memory, pages)
}

// checkHugepages checks that memory is a multiple of the hugepage size; "any" always fits.
func checkHugepages(memory int64, pages string) error {
	size := qm.Number(pages, 1)
	if size > 1 && memory%size != 0 {
		return api.Failf("Memory size %d is not a multiple of the requested hugepages size %d", memory, size)
	}
	return nil
}

// maxNUMANodes is above the number of nodes of any host.
const maxNUMANodes = 1024

// parseNUMANodes parses lists such as "0", "0-1" and "0;2-3". It stops at the limit, because the host does not
// have all of these nodes.
func parseNUMANodes(list string) []int64 {
	var out []int64
	for part := range strings.SplitSeq(list, ";") {
		first, last, ranged := strings.Cut(part, "-")
		if first == "" {
			continue
		}
		from := qm.Number(first, 0)
		to := from
		if ranged {
			to = qm.Number(last, from)
		}
		for n := from; n <= to && len(out) < maxNUMANodes; n++ {
			out = append(out, n)
		}
	}
	return out
}

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

// checkSharedDirectories returns an error if a virtiofs directory is not mapped on the host. Proxmox does not check
// this when the option is set.
func (dv *devices) checkSharedDirectories(g *kernel.Guest) error {
	for _, key := range slices.Sorted(maps.Keys(g.Config.Options)) {
		if qm.Stem(key) != "virtiofs" {
			continue
		}
		id := qm.SharedDirectory(g.Config.Options[key])
		if !dv.mappings.Has("dir", id) {
			return api.Failf("directory mapping invalid: '%s' does not exist", id)
		}
		if len(dv.mappings.Paths("dir", id, g.Host)) == 0 {
			return api.Failf("directory mapping invalid: '%s' has no path on node '%s'", id, g.Host)
		}
	}
	return nil
}

// sharedDirectories returns the directories of the virtiofs shares of a VM by tag, which is the mapping.
func (dv *devices) sharedDirectories(g *kernel.Guest) map[string]string {
	out := map[string]string{}
	for key, v := range g.Config.Options {
		if qm.Stem(key) != "virtiofs" {
			continue
		}
		id := qm.SharedDirectory(v)
		if paths := dv.mappings.Paths("dir", id, g.Host); len(paths) > 0 {
			out[id] = paths[0]
		}
	}
	return out
}
