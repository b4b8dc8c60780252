// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qm

import (
	"regexp"
	"strings"
)

func AgentEnabled(v string) bool {
	first, _, _ := strings.Cut(v, ",")
	return first == "1" || first == "enabled=1" || strings.Contains(v, "enabled=1")
}

var trailingNumber = regexp.MustCompile(`\d+$`)

// Stem is an option without its number; options that end in a digit of their own keep it.
func Stem(option string) string {
	switch option {
	case "smbios1", "audio0", "rng0", "efidisk0", "tpmstate0":
		return option
	}
	return trailingNumber.ReplaceAllString(option, "")
}

// SharedDirectory is the directory mapping of a virtiofs option, whose key may be left out.
func SharedDirectory(value string) string {
	if id := ParseFields(value)["dirid"]; id != "" {
		return id
	}
	first, _, _ := strings.Cut(value, ",")
	return first
}
