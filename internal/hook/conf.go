// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hook is what runs as root on a Proxmox host when one of our VMs starts or stops: the scripts that are named for
// the VM, and the pinning of its vCPUs. Both are named in the ownership mark in the VM's notes.
//
// Whoever may edit a VM's notes can therefore choose what is named there, and must not become root by it: a name is only a
// choice among files that root has put into one directory, and a CPU only one that the mark grants and the host has.
package hook

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// conf is what matters here of /etc/pve/qemu-server/VMID.conf.
type conf struct {
	notes string
	vcpus int
}

var option = regexp.MustCompile(`^([a-z]+[a-z0-9]*):\s*(\S.*)$`)

// parseConf reads the VM's present configuration. What follows the first section header are pending changes and snapshots.
func parseConf(content string) conf {
	var notes []string
	numbers := map[string]int{"cores": 1, "sockets": 1}
	for line := range strings.Lines(content) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "[") {
			break
		}
		if comment, ok := strings.CutPrefix(line, "#"); ok {
			// Proxmox keeps notes as comments, with ":" and "%" escaped as in a URL.
			if decoded, err := url.PathUnescape(comment); err == nil {
				comment = decoded
			}
			notes = append(notes, comment)
			continue
		}
		if match := option.FindStringSubmatch(line); match != nil {
			if n, err := strconv.Atoi(match[2]); err == nil {
				numbers[match[1]] = n
			}
		}
	}
	c := conf{notes: strings.Join(notes, "\n"), vcpus: numbers["cores"] * numbers["sockets"]}
	if n, ok := numbers["vcpus"]; ok {
		c.vcpus = n
	}
	return c
}

// mark is the VM's ownership mark. A copy or a restored backup has another VMID than its mark, and is not ours.
func (c conf) mark(vmid int) (ownership.Mark, bool) {
	m, ok := ownership.Read(c.notes)
	return m, ok && m.VMID == vmid && m.ClaimUID != ""
}
