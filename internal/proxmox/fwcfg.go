// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"regexp"
	"strings"
)

// firmwareNames are where Ignition looks for its config on QEMU: its own name, and
// that of Flatcar's. A guest passes over the one that it does not know.
var firmwareNames = []string{"opt/com.coreos/config", "opt/org.flatcar-linux/config"}

// firmwareArgument is one that hands a config over, however it was written.
var firmwareArgument = regexp.MustCompile(`\s*-fw_cfg\s+(?:name=)?opt/(?:com\.coreos|org\.flatcar-linux)/config,(?:file|string)=\S*`)

// plainPath needs no quoting: neither for the words that Proxmox takes arguments apart
// into, nor for QEMU, where a comma ends a value.
var plainPath = regexp.MustCompile(`^(/[a-zA-Z0-9_.+@-]+)+$`)

// handedOver is what args becomes. The file is named and not its content: arguments
// stand in the process list of the Host and in the VM's configuration, for many to
// read, and one of them has room for 128 KiB.
func (c VMConfig) handedOver(path string) (string, error) {
	args := strings.TrimSpace(firmwareArgument.ReplaceAllString(c.Options["args"], ""))
	if path == "" {
		return args, nil
	}
	if !plainPath.MatchString(path) || strings.Contains(path, "/../") {
		return "", &InvalidError{Parameters: map[string]string{
			"args": fmt.Sprintf("the file %q cannot be named in QEMU's arguments: want letters, digits and _.+@- in its path; use another storage", path),
		}}
	}
	words := []string{}
	if args != "" {
		words = append(words, args)
	}
	for _, name := range firmwareNames {
		words = append(words, "-fw_cfg name="+name+",file="+path)
	}
	return strings.Join(words, " "), nil
}

// HasFirmwareFile tells whether the VM is told to hand that file over.
func (c VMConfig) HasFirmwareFile(path string) bool {
	args, err := c.handedOver(path)
	return err == nil && path != "" && args == c.Options["args"]
}

// VolumePath is where a volume is on its Host.
func (c *client) VolumePath(ctx context.Context, host, volid string) (string, error) {
	storage, _, _ := strings.Cut(volid, ":")
	var volume struct{ Path string }
	if err := c.get(ctx, at("/nodes/{node}/storage/{storage}/content/{volume}", host, storage, volid), &volume); err != nil {
		return "", fmt.Errorf("looking for volume %s on host %s, %w", volid, host, err)
	}
	return volume.Path, nil
}
