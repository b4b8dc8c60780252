// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// MetadataType is a method to pass boot data to a VM.
// +kubebuilder:validation:Enum=none;cdrom;none|cdrom;cloudinit;fwcfg
type MetadataType string

const (
	// MetadataTypeNone passes no boot data: the Template contains what the VM needs.
	MetadataTypeNone MetadataType = "none"
	// MetadataTypeCDROM attaches an ISO image with rendered boot data.
	MetadataTypeCDROM MetadataType = "cdrom"
	// MetadataTypeEither is a placeholder in the upstream documentation that existing manifests contain. It means cdrom if
	// templatesRef is set, otherwise none.
	MetadataTypeEither MetadataType = "none|cdrom"
	// MetadataTypeCloudInit lets Proxmox generate the boot data on its own cloud-init drive.
	MetadataTypeCloudInit MetadataType = "cloudinit"
	// MetadataTypeFirmware passes rendered Ignition through the VM's firmware interface. It requires a root login.
	MetadataTypeFirmware MetadataType = "fwcfg"
)

// BootDataChangePolicy is what happens to existing Nodes when their boot data changes.
// +kubebuilder:validation:Enum=Ignore;Replace
type BootDataChangePolicy string

const (
	// BootDataChangeIgnore keeps existing Nodes: a change applies to new VMs only.
	BootDataChangeIgnore BootDataChangePolicy = "Ignore"
	// BootDataChangeReplace makes existing Nodes drift.
	BootDataChangeReplace BootDataChangePolicy = "Replace"
)

// MetadataOptions define how boot data is passed to a VM.
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'cdrom' || has(self.templatesRef) || has(self.templatesRefs)",message="type cdrom needs templatesRef: the Secret with the keys user-data, meta-data and network-config"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'fwcfg' || has(self.templatesRef) || has(self.templatesRefs)",message="type fwcfg needs templatesRef: the Secret with the key user-data, in Butane or Ignition"
// +kubebuilder:validation:XValidation:rule="!has(self.storage) || (has(self.type) && self.type in ['cdrom', 'none|cdrom', 'fwcfg'])",message="storage is only used with types cdrom and fwcfg: change the type or remove storage"
// +kubebuilder:validation:XValidation:rule="!has(self.cloudInit) || (has(self.type) && self.type == 'cloudinit')",message="cloudInit is only used with type cloudinit: set type to cloudinit or remove cloudInit"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'cloudinit' || (!has(self.templatesRef) && !has(self.templatesRefs) && !has(self.valuesRef))",message="type cloudinit renders no templates, Proxmox generates the boot data: remove templatesRef and valuesRef, or set type to cdrom"
// +kubebuilder:validation:XValidation:rule="!has(self.templatesRef) || !has(self.templatesRefs)",message="templatesRef and templatesRefs exclude each other: move templatesRef to the list, or remove one of them"
// +kubebuilder:validation:XValidation:rule="!has(self.onChange) || self.onChange != 'Replace' || (has(self.type) && self.type != 'none')",message="onChange Replace needs boot data that can change: set type to cdrom, cloudinit or fwcfg, or remove onChange"
type MetadataOptions struct {
	// type is the method: none (the template contains its own boot data), cdrom (an ISO image with rendered boot data is
	// attached), cloudinit (Proxmox generates the boot data from cloudInit and network on its own cloud-init drive) or fwcfg
	// (rendered Ignition is passed through QEMU's firmware interface, for images whose Ignition reads no drive; it requires
	// a root login in the cloud config). "none|cdrom" means cdrom if templatesRef or templatesRefs is set, otherwise none. The default is
	// none. The values cloudinit and fwcfg are additions of this provider.
	// +kubebuilder:default=none
	// +optional
	Type MetadataType `json:"type,omitempty"`

	// templatesRef names the Secret with the boot data templates. Its keys are user-data, meta-data, network-config and
	// vendor-data. It is required with type cdrom and fwcfg, unless templatesRefs is set.
	// +optional
	TemplatesRef *SecretReference `json:"templatesRef,omitempty"`

	// templatesRefs name several Secrets or ConfigMaps with boot data templates, in this order. Their user-data is combined: Butane
	// and Ignition are merged, and the later part wins; the other formats become a multi-part archive for cloud-init, which merges
	// mappings, appends to lists and lets the later text win. The same applies to vendor-data. meta-data and network-config are
	// those of the last part that has them. The upstream provider does not have this field.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	// +optional
	TemplatesRefs []TemplatesReference `json:"templatesRefs,omitempty"`

	// valuesRef names a Secret whose keys are available in the boot data templates as .Values.<key>.
	// +optional
	ValuesRef *SecretReference `json:"valuesRef,omitempty"`

	// storage is the Proxmox storage with content type iso that the rendered boot data is uploaded to. If empty, the first
	// enabled and active one on the host is used. The upstream provider does not have this field.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]$`
	// +optional
	Storage string `json:"storage,omitempty"`

	// onChange defines what happens to existing nodes when their boot data changes: the content of templatesRef, templatesRefs,
	// valuesRef and sshKeysRef, or the settings in cloudInit. Ignore keeps the nodes, so the change applies to new VMs only.
	// Replace replaces the nodes within the disruption budgets of their NodePools, with the drift reason BootDataChanged. The
	// default is Ignore. The upstream provider does not have this field.
	// +optional
	OnChange BootDataChangePolicy `json:"onChange,omitempty"`

	// cloudInit configures Proxmox's own cloud-init drive, with type cloudinit. Such VMs get no join token from the
	// provider: the image or a snippet must contain what the node needs to join. The upstream provider does not have this field.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`
}

// TemplatesReference names a Secret or a ConfigMap with boot data templates.
// +structType=atomic
type TemplatesReference struct {
	// kind is Secret or ConfigMap. The default is Secret.
	// +kubebuilder:default=Secret
	// +kubebuilder:validation:Enum=Secret;ConfigMap
	// +optional
	Kind string `json:"kind,omitempty"`

	// name is the name of the Secret or ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +required
	Name string `json:"name,omitempty"`

	// namespace is the namespace of the Secret or ConfigMap.
	// +kubebuilder:validation:MinLength=1
	// +required
	Namespace string `json:"namespace,omitempty"`
}

// IsConfigMap reports whether the templates are in a ConfigMap.
func (r TemplatesReference) IsConfigMap() bool { return r.Kind == "ConfigMap" }

// ReplacesOnChange reports whether a change of the boot data replaces Nodes.
func (m MetadataOptions) ReplacesOnChange() bool {
	return m.OnChange == BootDataChangeReplace && (m.IsRendered() || m.UsesCloudInitDrive())
}

// UsesCDROM reports whether the VM gets an ISO image with boot data.
func (m MetadataOptions) UsesCDROM() bool {
	return m.Type == MetadataTypeCDROM || (m.Type == MetadataTypeEither && (m.TemplatesRef != nil || len(m.TemplatesRefs) > 0))
}

// UsesFWCfg reports whether the VM gets rendered Ignition through QEMU's fw_cfg.
func (m MetadataOptions) UsesFWCfg() bool { return m.Type == MetadataTypeFirmware }

// IsRendered reports whether boot data is rendered from templates and uploaded.
func (m MetadataOptions) IsRendered() bool { return m.UsesCDROM() || m.UsesFWCfg() }

// UsesCloudInitDrive reports whether the VM gets a cloud-init drive that Proxmox generates.
func (m MetadataOptions) UsesCloudInitDrive() bool { return m.Type == MetadataTypeCloudInit }

// CloudInit configures Proxmox's own cloud-init drive. Fields that are not set keep the template's value (its options ciuser,
// sshkeys and cicustom). There is no password: it would be the same on all VMs, and every VM would keep a drive with its
// hash.
// +kubebuilder:validation:XValidation:rule="!has(self.snippets) || !has(self.snippets.user) || (!has(self.user) && !has(self.sshKeys) && !has(self.sshKeysRef) && !has(self.packageUpgrade))",message="snippets.user replaces what Proxmox generates from user, sshKeys, sshKeysRef and packageUpgrade: remove those, or use snippets.vendor"
type CloudInit struct {
	// user is the name of the user that the SSH keys are installed for. If empty, the template's user is used, or else the image's default user.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z_][a-z0-9_-]*$`
	// +optional
	User string `json:"user,omitempty"`

	// sshKeys are the public keys of users who may log in, one per entry, in the format of authorized_keys. Together with
	// the keys of sshKeysRef they replace the template's keys.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=8192
	// +kubebuilder:validation:items:Pattern=`^[^\r\n]*(ssh-|ecdsa-|sk-)[^\r\n]* AAAA[^\r\n]*$`
	// +listType=atomic
	// +optional
	SSHKeys []string `json:"sshKeys,omitempty"`

	// sshKeysRef names a Secret with more public keys in its key authorized_keys, one per line.
	// +optional
	SSHKeysRef *SecretReference `json:"sshKeysRef,omitempty"`

	// packageUpgrade makes the guest upgrade its packages at its first boot, which delays the node by minutes. The default is
	// false.
	// +optional
	PackageUpgrade *bool `json:"packageUpgrade,omitempty"`

	// snippets are files on a storage with content type snippets that replace the files that Proxmox generates. They are the
	// same for all VMs and must exist on each host or on a shared storage.
	// +optional
	Snippets *Snippets `json:"snippets,omitempty"`

	// storage is the Proxmox storage of the cloud-init drive if the template has no such drive. If empty, the storage of the
	// VM's disk is used.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]$`
	// +optional
	Storage string `json:"storage,omitempty"`
}

// Snippets are files on a storage, each in the form local:snippets/worker.yaml.
// +kubebuilder:validation:MinProperties=1
type Snippets struct {
	// vendor is cloud-init's vendor-data. It supplements the user-data that Proxmox generates, which sets the name of the
	// node. Use it for what all nodes have in common.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*:snippets/[^\s,]+$`
	// +optional
	Vendor string `json:"vendor,omitempty"`

	// user is cloud-init's user-data. It replaces the user-data that Proxmox generates, so it must also set the name of the
	// node.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*:snippets/[^\s,]+$`
	// +optional
	User string `json:"user,omitempty"`

	// network is cloud-init's network-config. It replaces the addresses that the provider assigns.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*:snippets/[^\s,]+$`
	// +optional
	Network string `json:"network,omitempty"`

	// meta is cloud-init's meta-data.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*:snippets/[^\s,]+$`
	// +optional
	Meta string `json:"meta,omitempty"`
}

// ByKind returns the files that are set, by Proxmox's name of their kind: user, network, meta or vendor.
func (s *Snippets) ByKind() map[string]string {
	out := map[string]string{}
	if s == nil {
		return out
	}
	for kind, file := range map[string]string{"user": s.User, "network": s.Network, "meta": s.Meta, "vendor": s.Vendor} {
		if file != "" {
			out[kind] = file
		}
	}
	return out
}
