// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
)

// conf contains the used options of /etc/pve/qemu-server/VMID.conf.
type conf struct {
	notes string
	vcpus int
}

var option = regexp.MustCompile(`^([a-z]+[a-z0-9]*):\s*(\S.*)$`)

// parseConf parses the VM's current configuration. Pending changes and snapshots follow the first section header.
func parseConf(content string) conf {
	var notes []string
	numbers := map[string]int{"cores": 1, "sockets": 1}
	for line := range strings.Lines(content) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "[") {
			break
		}
		if comment, ok := strings.CutPrefix(line, "#"); ok {
			// Proxmox stores notes as comments, with ":" and "%" escaped as in a URL.
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

// mark returns the VM's ownership mark. It returns false for a copy or a restored backup, whose VMID differs from the mark's.
func (c conf) mark(vmid int) (ownership.Mark, bool) {
	m, ok := ownership.Read(c.notes)
	return m, ok && m.VMID == vmid && m.ClaimUID != ""
}
