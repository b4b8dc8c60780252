// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package vmconfig

import (
	"cmp"
	"fmt"
	"maps"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// CloudInit is what Proxmox writes to a cloud-init drive that it makes itself. It
// does so at every start, so nothing is generated beforehand.
type CloudInit struct {
	User    string
	SSHKeys []string
	Upgrade *bool
	// Snippets by kind.
	Snippets map[string]string
	// Storage of the drive if the Template has none; empty means that of the boot disk.
	Storage string

	// hasUserData: the class has settings that Proxmox makes user-data of.
	// hasNetwork: it configures the addresses of interfaces.
	hasUserData, hasNetwork bool
}

// NewCloudInit returns the cloud-init settings of a class without the SSH keys of its
// Secret; nil if Proxmox makes no drive for it.
func NewCloudInit(class *v1alpha1.ProxmoxNodeClass) *CloudInit {
	if !class.Spec.MetadataOptions.UsesCloudInitDrive() {
		return nil
	}
	out := &CloudInit{hasNetwork: class.Spec.Network != nil}
	if options := class.Spec.MetadataOptions.CloudInit; options != nil {
		out.User, out.SSHKeys, out.Upgrade, out.Storage = options.User, options.SSHKeys, options.PackageUpgrade, options.Storage
		out.Snippets = options.Snippets.ByKind()
		out.hasUserData = options.User != "" || len(options.SSHKeys) > 0 || options.SSHKeysRef != nil || options.PackageUpgrade != nil
	}
	return out
}

// setCloudInit sets the cloud-init options, and adds a drive if the clone has none.
func (b *builder) setCloudInit(disk proxmox.Drive) error {
	c := b.want.CloudInit
	snippets := proxmox.ParseSnippets(b.clone.Options["cicustom"])
	if err := c.checkOverridden(snippets); err != nil {
		return err
	}
	if len(c.Snippets) > 0 {
		maps.Copy(snippets, c.Snippets)
		b.set["cicustom"] = proxmox.EncodeSnippets(snippets)
	}
	if c.User != "" {
		b.set["ciuser"] = c.User
	}
	if len(c.SSHKeys) > 0 {
		b.set["sshkeys"] = proxmox.EncodeSSHKeys(c.SSHKeys)
	}
	// Proxmox's own default is to upgrade.
	b.set["ciupgrade"] = "0"
	if c.Upgrade != nil && *c.Upgrade {
		b.set["ciupgrade"] = "1"
	}
	if _, ok := b.clone.Drives().CloudInit(); ok {
		return nil
	}
	slot, _, err := bootDriveSlot(b.clone, disk)
	if err != nil {
		return err
	}
	b.set[slot] = cmp.Or(c.Storage, disk.Storage) + ":cloudinit"
	return nil
}

// checkOverridden returns an error if a snippet of the Template would override
// settings of the class.
func (c *CloudInit) checkOverridden(inherited map[string]string) error {
	const hint = "remove it from the template (qm set TEMPLATE --delete cicustom), or remove the setting from the class"
	if user := inherited["user"]; user != "" && c.hasUserData {
		return fmt.Errorf("its cicustom sets user=%s, which replaces the user-data of spec.metadataOptions.cloudInit; %s", user, hint)
	}
	if network := inherited["network"]; network != "" && c.hasNetwork {
		return fmt.Errorf("its cicustom sets network=%s, which replaces the addresses of spec.network; %s", network, hint)
	}
	return nil
}

// Snippets returns the files that a VM of a class needs on its Host, by kind: those of
// the class, and those inherited from the Template.
func Snippets(class *v1alpha1.ProxmoxNodeClass, template *proxmox.VMConfig) map[string]string {
	settings := NewCloudInit(class)
	if settings == nil {
		return nil
	}
	snippets := map[string]string{}
	if template != nil {
		snippets = proxmox.ParseSnippets(template.Options["cicustom"])
	}
	maps.Copy(snippets, settings.Snippets)
	return snippets
}

// AddedCloudInitStorage returns the storage of the cloud-init drive that is added to a
// class's VMs. It returns "" if the Template has a drive, and if the drive is on the
// storage that the class selects for the boot disk, whatever that is on a Host.
func AddedCloudInitStorage(class *v1alpha1.ProxmoxNodeClass, template proxmox.VMConfig) string {
	settings := NewCloudInit(class)
	if settings == nil {
		return ""
	}
	if _, ok := template.Drives().CloudInit(); ok {
		return ""
	}
	if settings.Storage != "" || !class.Spec.BootDevice.StorageSelection().IsZero() {
		return settings.Storage
	}
	disk, _ := template.Drives().Boot()
	return disk.Storage
}
