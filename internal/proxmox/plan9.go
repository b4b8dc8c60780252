// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"regexp"
	"strings"
)

// Plan9Share is a directory of a Host and the name by which the guest mounts it.
type Plan9Share struct{ Tag, Path string }

// Check tells why a share cannot be named in QEMU's arguments.
func (s Plan9Share) Check() error {
	if plainPath.MatchString(s.Path) && !strings.Contains(s.Path+"/", "/../") {
		return nil
	}
	return &InvalidError{Parameters: map[string]string{
		"args": fmt.Sprintf("the directory %q of mapping %s cannot be named in QEMU's arguments: want letters, digits and _.+@- in its path", s.Path, s.Tag),
	}}
}

// plan9Argument is one that Share has added.
var plan9Argument = regexp.MustCompile(`\s*-virtfs\s+local,id=karpenter-\S*`)

// sharing is what args becomes. Owners and modes that the guest sets are kept beside
// the files (mapped-xattr), so that no guest makes files of root, or with its bits, on
// the Host.
func (c VMConfig) sharing(shares []Plan9Share) (string, error) {
	var words []string
	if rest := strings.TrimSpace(plan9Argument.ReplaceAllString(c.Options["args"], "")); rest != "" {
		words = append(words, rest)
	}
	for _, s := range shares {
		if err := s.Check(); err != nil {
			return "", err
		}
		words = append(words, fmt.Sprintf("-virtfs local,id=karpenter-%s,path=%s,mount_tag=%s,security_model=mapped-xattr", s.Tag, s.Path, s.Tag))
	}
	return strings.Join(words, " "), nil
}
