// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qm

import (
	"regexp"
	"strings"
)

// AgentEnabled reports whether a value of the agent option enables the guest agent.
func AgentEnabled(v string) bool {
	first, _, _ := strings.Cut(v, ",")
	return first == "1" || first == "enabled=1" || strings.Contains(v, "enabled=1")
}

var trailingNumber = regexp.MustCompile(`\d+$`)

// Stem returns an option without its number. Options whose name ends in a digit keep it.
func Stem(option string) string {
	switch option {
	case "smbios1", "audio0", "rng0", "efidisk0", "tpmstate0":
		return option
	}
	return trailingNumber.ReplaceAllString(option, "")
}

// SharedDirectory returns the directory mapping of a virtiofs option, whose key is optional.
func SharedDirectory(value string) string {
	if id := ParseFields(value)["dirid"]; id != "" {
		return id
	}
	first, _, _ := strings.Cut(value, ",")
	return first
}
