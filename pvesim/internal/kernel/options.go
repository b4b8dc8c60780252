// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
)

// SetOptions sets options of datacenter.cfg.
func (k *Kernel) SetOptions(options map[string]string) {
	k.Mu.Lock()
	defer k.Mu.Unlock()
	maps.Copy(k.Options, options)
}

// AllowedTags returns the tags that "user-tag-access" allows the caller to set. Callers that can modify the cluster can
// set registered tags, too. The caller holds the mutex.
func (k *Kernel) AllowedTags(r *api.Request, modify bool) []string {
	tags := map[string]bool{}
	access := qm.ParseFields(k.Options["user-tag-access"])
	mode := cmp.Or(access["user-allow"], "free")
	if mode == "list" || mode == "existing" {
		for _, t := range strings.FieldsFunc(access["user-allow-list"], func(c rune) bool { return c == ';' }) {
			tags[t] = true
		}
	}
	if mode == "free" || mode == "existing" {
		for _, g := range k.Guests {
			if k.Access.Has(r.Who, "/vms/"+strconv.Itoa(g.VMID), "VM.Audit") {
				for _, t := range qm.TagList(g.Config.Options["tags"]) {
					tags[t] = true
				}
			}
		}
	}
	for _, t := range qm.TagList(k.Options["registered-tags"]) {
		if modify {
			tags[t] = true
		} else {
			delete(tags, t)
		}
	}
	out := slices.Sorted(maps.Keys(tags))
	if out == nil {
		out = []string{}
	}
	return out
}
