// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

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

// parseNUMANodes parses lists such as "0", "0-1" and "0;2-3".
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
		for n := from; n <= to; n++ {
			out = append(out, n)
		}
	}
	return out
}
