// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// MetadataType is a way for boot data to reach a VM.
// +kubebuilder:validation:Enum=none;cdrom;none|cdrom;cloudinit;fwcfg
type MetadataType string

const (
	// MetadataTypeNone leaves boot data to the Template.
	MetadataTypeNone MetadataType = "none"
	// MetadataTypeCDROM attaches an ISO image with rendered boot data.
	MetadataTypeCDROM MetadataType = "cdrom"
	// MetadataTypeEither stands in the documentation of the class as it is spread in the wild, and so in people's manifests:
	// an ISO image where templatesRef names the templates for it, else nothing.
	MetadataTypeEither MetadataType = "none|cdrom"
	// MetadataTypeCloudInit lets Proxmox make the boot data, on its own cloud-init drive.
	MetadataTypeCloudInit MetadataType = "cloudinit"
	// MetadataTypeFirmware hands rendered Ignition to the VM's firmware interface, which takes a login of root.
	MetadataTypeFirmware MetadataType = "fwcfg"
)

// MetadataOptions say how boot data reaches a VM.
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'cdrom' || has(self.templatesRef)",message="type cdrom needs templatesRef: the Secret with the keys user-data, meta-data and network-config"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'fwcfg' || has(self.templatesRef)",message="type fwcfg needs templatesRef: the Secret with the key user-data, in Butane or Ignition"
// +kubebuilder:validation:XValidation:rule="!has(self.storage) || (has(self.type) && self.type in ['cdrom', 'none|cdrom', 'fwcfg'])",message="storage is only used with type cdrom: set type to cdrom or remove storage"
// +kubebuilder:validation:XValidation:rule="!has(self.cloudInit) || (has(self.type) && self.type == 'cloudinit')",message="cloudInit is only used with type cloudinit: set type to cloudinit or remove cloudInit"
// +kubebuilder:validation:XValidation:rule="!has(self.type) || self.type != 'cloudinit' || (!has(self.templatesRef) && !has(self.valuesRef))",message="type cloudinit renders no templates, Proxmox makes the boot data: remove templatesRef and valuesRef, or set type to cdrom"
type MetadataOptions struct {
	// type is none (the template brings its own boot data), cdrom (an ISO image with rendered boot data is attached),
	// cloudinit (Proxmox makes the boot data on its own cloud-init drive, of what cloudInit and network say) or fwcfg
	// (rendered Ignition is handed to QEMU's firmware interface, for images whose Ignition reads no drive; it takes a
	// login of root in the cloud config). "none|cdrom" is taken for cdrom where templatesRef is set, and for none where it
	// is not. The values cloudinit and fwcfg are additions of this provider.
	// +kubebuilder:default=none
	// +optional
	Type MetadataType `json:"type,omitempty"`

	// templatesRef names the Secret with the templates of the boot data, under the keys user-data, meta-data,
	// network-config and vendor-data.
	// +optional
	TemplatesRef *SecretReference `json:"templatesRef,omitempty"`

	// valuesRef names a Secret whose keys the templates see as .Values.<key>.
	// +optional
	ValuesRef *SecretReference `json:"valuesRef,omitempty"`

	// storage is the Proxmox storage with content type iso that takes the rendered boot data. Empty means the first one on the
	// host that is enabled and active. This field is an addition of this provider.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]$`
	// +optional
	Storage string `json:"storage,omitempty"`

	// cloudInit is what Proxmox puts on its own cloud-init drive, with type cloudinit. Such VMs get no join token from us:
	// the image or a snippet must bring what it takes to join. This field is an addition of this provider.
	// +optional
	CloudInit *CloudInit `json:"cloudInit,omitempty"`
}

// CDROM tells whether the VM gets an ISO image with boot data.
func (m MetadataOptions) CDROM() bool {
	return m.Type == MetadataTypeCDROM || (m.Type == MetadataTypeEither && m.TemplatesRef != nil)
}

// Firmware tells whether the VM gets rendered Ignition through its firmware interface.
func (m MetadataOptions) Firmware() bool { return m.Type == MetadataTypeFirmware }

// Rendered tells whether boot data is rendered of templates, and uploaded.
func (m MetadataOptions) Rendered() bool { return m.CDROM() || m.Firmware() }

// ProxmoxDrive tells whether the VM gets a cloud-init drive that Proxmox fills.
func (m MetadataOptions) ProxmoxDrive() bool { return m.Type == MetadataTypeCloudInit }

// CloudInit is what Proxmox puts on its own cloud-init drive. What it leaves out stays as the template has it (its options
// ciuser, sshkeys and cicustom). There is no password: it would be the same on all VMs, and its hash would lie on a drive
// that every VM keeps.
// +kubebuilder:validation:XValidation:rule="!has(self.snippets) || !has(self.snippets.user) || (!has(self.user) && !has(self.sshKeys) && !has(self.sshKeysRef) && !has(self.packageUpgrade))",message="snippets.user takes the place of what Proxmox makes of user, sshKeys, sshKeysRef and packageUpgrade: remove those, or use snippets.vendor"
type CloudInit struct {
	// user is the login that the SSH keys are for. Empty means that of the template, else the image's default.
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[a-z_][a-z0-9_-]*$`
	// +optional
	User string `json:"user,omitempty"`

	// sshKeys are public keys that may log in, one per entry, as in a file authorized_keys. Together with those of
	// sshKeysRef they replace the template's.
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=8192
	// +kubebuilder:validation:items:Pattern=`^[^\r\n]*(ssh-|ecdsa-|sk-)[^\r\n]* AAAA[^\r\n]*$`
	// +listType=atomic
	// +optional
	SSHKeys []string `json:"sshKeys,omitempty"`

	// sshKeysRef names a Secret with more public keys, under the key authorized_keys, one per line.
	// +optional
	SSHKeysRef *SecretReference `json:"sshKeysRef,omitempty"`

	// packageUpgrade lets the guest upgrade its packages before anything else at its first boot. Left out, it does not:
	// a Node would come minutes later.
	// +optional
	PackageUpgrade *bool `json:"packageUpgrade,omitempty"`

	// snippets are files that an operator placed on a storage with content snippets, to take the place of what Proxmox
	// would make. They are the same for all VMs, and must be on each host, or on a storage that the hosts share.
	// +optional
	Snippets *Snippets `json:"snippets,omitempty"`

	// storage takes the drive of a VM whose template has none. Empty means the storage of the VM's disk.
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*[a-zA-Z0-9]$`
	// +optional
	Storage string `json:"storage,omitempty"`
}

// Snippets are files on a storage, each in the form local:snippets/worker.yaml.
// +kubebuilder:validation:MinProperties=1
type Snippets struct {
	// vendor is cloud-init's vendor-data. It comes beside the user-data that Proxmox makes, which brings the name of the
	// Node: the right place for what all Nodes have in common.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*:snippets/[^\s,]+$`
	// +optional
	Vendor string `json:"vendor,omitempty"`

	// user is cloud-init's user-data. Proxmox then makes none: the file must also see to the name of the Node.
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][a-zA-Z0-9._-]*:snippets/[^\s,]+$`
	// +optional
	User string `json:"user,omitempty"`

	// network is cloud-init's network-config, in place of addresses that we give.
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

// ByKind are the files by the names that Proxmox has for their kinds.
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
