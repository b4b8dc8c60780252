// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"regexp"
	"strings"
)

// ignitionNames are the fw_cfg names from which Ignition reads its config on QEMU:
// its own and Flatcar's. A guest ignores the name that it does not know.
var ignitionNames = []string{"opt/com.coreos/config", "opt/org.flatcar-linux/config"}

var (
	ignitionArgument = regexp.MustCompile(`\s*-fw_cfg\s+(?:name=)?opt/(?:com\.coreos|org\.flatcar-linux)/config,(?:file|string)=\S*`)
	// plan9Argument matches arguments that argsWithShares has added.
	plan9Argument = regexp.MustCompile(`\s*-virtfs\s+local,id=karpenter-\S*`)
)

// plainPath matches paths that need no quoting: Proxmox splits arguments into words,
// and QEMU ends a value at a comma.
var plainPath = regexp.MustCompile(`^(/[a-zA-Z0-9_.+@-]+)+$`)

// argsWithIgnitionFile returns arguments with that file as Ignition's
// config, or without one if path is empty. The arguments name the file instead of
// its content: users of the Host can read them in the process list and in the VM's
// configuration, and one argument is limited to 128 KiB.
func argsWithIgnitionFile(args, path string) (string, error) {
	words := otherArgs(args, ignitionArgument)
	if path == "" {
		return strings.Join(words, " "), nil
	}
	if !plainPath.MatchString(path) || strings.Contains(path, "/../") {
		return "", &InvalidError{Parameters: map[string]string{
			"args": fmt.Sprintf("the file %q cannot be named in QEMU's arguments: want letters, digits and _.+@- in its path; use another storage", path),
		}}
	}
	for _, name := range ignitionNames {
		words = append(words, "-fw_cfg name="+name+",file="+path)
	}
	return strings.Join(words, " "), nil
}

// Plan9Share is a directory of a Host and the tag by which the guest mounts it.
type Plan9Share struct{ Tag, Path string }

// Check returns an error if the share cannot be named in QEMU's arguments.
func (s Plan9Share) Check() error {
	if plainPath.MatchString(s.Path) && !strings.Contains(s.Path+"/", "/../") {
		return nil
	}
	return &InvalidError{Parameters: map[string]string{
		"args": fmt.Sprintf("the directory %q of mapping %s cannot be named in QEMU's arguments: want letters, digits and _.+@- in its path", s.Path, s.Tag),
	}}
}

// argsWithShares returns arguments with these shares. QEMU stores owners
// and modes set by the guest as extended attributes (mapped-xattr), so a guest
// cannot create setuid files or files owned by root on the Host.
func argsWithShares(args string, shares []Plan9Share) (string, error) {
	words := otherArgs(args, plan9Argument)
	for _, s := range shares {
		if err := s.Check(); err != nil {
			return "", err
		}
		words = append(words, fmt.Sprintf("-virtfs local,id=karpenter-%s,path=%s,mount_tag=%s,security_model=mapped-xattr", s.Tag, s.Path, s.Tag))
	}
	return strings.Join(words, " "), nil
}

// otherArgs returns the arguments that do not match the pattern.
func otherArgs(args string, pattern *regexp.Regexp) []string {
	if args = strings.TrimSpace(pattern.ReplaceAllString(args, "")); args != "" {
		return []string{args}
	}
	return nil
}
