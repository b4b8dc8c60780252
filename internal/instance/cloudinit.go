// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// authorizedKeys is the key of the Secret with SSH keys.
const authorizedKeys = "authorized_keys"

// cloudInit is what Proxmox is told to put on a cloud-init drive of its own. It does
// so at every start, so that nothing has to be generated beforehand.
type cloudInit struct {
	user     string
	sshKeys  []string
	upgrade  *bool
	snippets map[string]string
	// storage for the drive, if the Template has none; empty means the boot disk's.
	storage string
	// personal classes say something that Proxmox makes user-data of, addressed ones
	// how interfaces get their addresses.
	personal, addressed bool
}

// cloudInitOf reads a class, apart from its Secret; nil where Proxmox makes no drive.
func cloudInitOf(class *v1alpha1.ProxmoxNodeClass) *cloudInit {
	if !class.Spec.MetadataOptions.ProxmoxDrive() {
		return nil
	}
	out := &cloudInit{addressed: class.Spec.Network != nil}
	if options := class.Spec.MetadataOptions.CloudInit; options != nil {
		out.user, out.sshKeys, out.upgrade, out.storage = options.User, options.SSHKeys, options.PackageUpgrade, options.Storage
		out.snippets = options.Snippets.ByKind()
		out.personal = options.User != "" || len(options.SSHKeys) > 0 || options.SSHKeysRef != nil || options.PackageUpgrade != nil
	}
	return out
}

// cloudInit reads a class and its Secret.
func (b BootSource) cloudInit(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (*cloudInit, error) {
	out := cloudInitOf(class)
	options := class.Spec.MetadataOptions.CloudInit
	if out == nil || options == nil {
		return out, nil
	}
	for n, key := range out.sshKeys {
		if err := proxmox.CheckSSHKey(key); err != nil {
			return nil, fmt.Errorf("reading spec.metadataOptions.cloudInit.sshKeys[%d]: %w", n, err)
		}
	}
	if options.SSHKeysRef == nil {
		return out, nil
	}
	more, err := b.sshKeys(ctx, *options.SSHKeysRef)
	out.sshKeys = append(slices.Clip(out.sshKeys), more...)
	return out, err
}

// sshKeys reads a file authorized_keys: a key per line, comments and empty lines.
func (b BootSource) sshKeys(ctx context.Context, ref v1alpha1.SecretReference) ([]string, error) {
	secret, err := b.secret(ctx, "cloudInit.sshKeysRef", ref)
	if err != nil {
		return nil, err
	}
	content, ok := secret.Data[authorizedKeys]
	if !ok {
		return nil, fmt.Errorf("reading secret %s/%s of spec.metadataOptions.cloudInit.sshKeysRef: it has no key %s", ref.Namespace, ref.Name, authorizedKeys)
	}
	var keys []string
	for n, line := range strings.Split(string(content), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := proxmox.CheckSSHKey(line); err != nil {
			return nil, fmt.Errorf("reading secret %s/%s of spec.metadataOptions.cloudInit.sshKeysRef: %s, line %d: %w", ref.Namespace, ref.Name, authorizedKeys, n+1, err)
		}
		keys = append(keys, line)
	}
	return keys, nil
}

// write puts the options into a configuration, and the drive if the clone has none.
func (c *cloudInit) write(cfg proxmox.VMConfig, disk proxmox.Drive, set map[string]string) error {
	snippets := proxmox.ParseSnippets(cfg.Options["cicustom"])
	if err := c.overruled(snippets); err != nil {
		return err
	}
	if len(c.snippets) > 0 {
		maps.Copy(snippets, c.snippets)
		set["cicustom"] = proxmox.EncodeSnippets(snippets)
	}
	if c.user != "" {
		set["ciuser"] = c.user
	}
	if len(c.sshKeys) > 0 {
		set["sshkeys"] = proxmox.EncodeSSHKeys(c.sshKeys)
	}
	// Proxmox's own default is to upgrade.
	set["ciupgrade"] = "0"
	if c.upgrade != nil && *c.upgrade {
		set["ciupgrade"] = "1"
	}
	if _, ok := cfg.Drives().CloudInit(); ok {
		return nil // the clone got one of its own
	}
	slot, _, err := bootDrive(cfg)
	if err != nil {
		return err
	}
	storage := c.storage
	if storage == "" {
		storage = disk.Storage
	}
	set[slot] = storage + ":cloudinit"
	return nil
}

// overruled says what of the class would have no effect, since a snippet that the
// Template brings along takes its place.
func (c *cloudInit) overruled(inherited map[string]string) error {
	const remedy = "remove it from the template (qm set TEMPLATE --delete cicustom), or from the class what it stands for"
	if user := inherited["user"]; user != "" && c.personal {
		return fmt.Errorf("its cicustom has user=%s, in place of the user-data that spec.metadataOptions.cloudInit is for; %s", user, remedy)
	}
	if network := inherited["network"]; network != "" && c.addressed {
		return fmt.Errorf("its cicustom has network=%s, in place of the addresses of spec.network; %s", network, remedy)
	}
	return nil
}

// SnippetsOf are the files that a VM of a class needs on its Host, by kind: those of
// the class, and those that it inherits from its Template.
func SnippetsOf(class *v1alpha1.ProxmoxNodeClass, template *proxmox.VMConfig) map[string]string {
	own := cloudInitOf(class)
	if own == nil {
		return nil
	}
	snippets := map[string]string{}
	if template != nil {
		snippets = proxmox.ParseSnippets(template.Options["cicustom"])
	}
	maps.Copy(snippets, own.snippets)
	return snippets
}

// CloudInitStorage is where the drive of a class's VMs is made, and whether that is
// for want of one in the Template.
func CloudInitStorage(class *v1alpha1.ProxmoxNodeClass, template proxmox.VMConfig) (storage string, added bool) {
	own := cloudInitOf(class)
	if own == nil {
		return "", false
	}
	if drive, ok := template.Drives().CloudInit(); ok {
		return drive.Storage, false
	}
	if own.storage != "" {
		return own.storage, true
	}
	if class.Spec.BootDevice.Storage != "" {
		return class.Spec.BootDevice.Storage, true
	}
	disk, _ := template.Drives().Boot()
	return disk.Storage, true
}
