// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"path"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// kubeletFlags is the kubelet's command line. The zero value is the default of
// kubeadm's package.
type kubeletFlags map[string]string

// flag returns the value of a flag, or the image's default.
func (f kubeletFlags) flag(name string) string {
	if value, ok := f[name]; ok {
		return value
	}
	switch name {
	case "config":
		return "/var/lib/kubelet/config.yaml"
	case "bootstrap-kubeconfig":
		return "/etc/kubernetes/bootstrap-kubelet.conf"
	}
	return ""
}

// environmentFiles contain the kubelet's extra arguments, in the order in which the
// unit appends them to the command line.
var environmentFiles = []string{
	"/var/lib/kubelet/kubeadm-flags.env",
	"/etc/default/kubelet",
	"/etc/sysconfig/kubelet",
}

// readKubeletFlags collects the flags from the unit, its drop-ins and the
// environment files.
func readKubeletFlags(disk pvesim.GuestDisk) kubeletFlags {
	flags := kubeletFlags{}
	for _, name := range unitFiles(disk) {
		content, _ := disk.Read(name)
		for line := range strings.Lines(strings.ReplaceAll(string(content), "\\\n", " ")) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch key {
			case "ExecStart":
				flags.add(value)
			case "Environment":
				_, value, _ = strings.Cut(unquoted(value), "=")
				flags.add(value)
			}
		}
	}
	for _, name := range environmentFiles {
		content, _ := disk.Read(name)
		for line := range strings.Lines(string(content)) {
			line = strings.TrimSpace(line)
			if _, value, found := strings.Cut(line, "="); found && !strings.HasPrefix(line, "#") {
				flags.add(unquoted(value))
			}
		}
	}
	return flags
}

// runStartPre runs the commands that prepare a start of the kubelet, for example to find out
// its address.
func (g *guest) runStartPre() {
	for _, name := range unitFiles(g.storage) {
		content, _ := g.storage.Read(name)
		for line := range strings.Lines(string(content)) {
			if command, found := strings.CutPrefix(strings.TrimSpace(line), "ExecStartPre="); found {
				g.effectOf(strings.Fields(strings.TrimPrefix(command, "-")), maxScriptDepth)
			}
		}
	}
}

// unitFiles returns the kubelet's unit and then its drop-ins, sorted by name.
func unitFiles(disk pvesim.GuestDisk) []string {
	const unit = "/etc/systemd/system/kubelet.service"
	return append([]string{unit}, filesIn(disk, unit+".d", ".conf")...)
}

// filesIn returns the files in a directory with this extension, sorted by name.
func filesIn(disk pvesim.GuestDisk, directory, extension string) []string {
	var files []string
	for _, name := range disk.Names() {
		if path.Dir(name) == directory && path.Ext(name) == extension {
			files = append(files, name)
		}
	}
	slices.Sort(files)
	return files
}

// add parses flags of the form --name=value or --name value. Later flags take
// precedence.
func (f kubeletFlags) add(text string) {
	words := strings.Fields(text)
	for i, word := range words {
		if !strings.HasPrefix(word, "--") {
			continue
		}
		name, value, found := strings.Cut(strings.TrimPrefix(word, "--"), "=")
		if !found {
			value = "true"
			if i+1 < len(words) && !strings.HasPrefix(words[i+1], "-") {
				value = words[i+1]
			}
		}
		f[name] = unquoted(value)
	}
}

func unquoted(s string) string {
	s = strings.TrimSpace(s)
	if len(s) >= 2 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}
