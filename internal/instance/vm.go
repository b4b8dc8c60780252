// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// VM is a VM of this Kubernetes cluster, as found on Proxmox.
type VM struct {
	Identity
	Host string
	// Claim is the name of its Claim, and Name that of the VM.
	Claim, Name string
	// Status is the power state as of the last poll.
	Status string
	// HAState is the state of its HA resource; empty if it has none.
	HAState string
	Config  proxmox.VMConfig
	mark    ownership.Mark
	// hasNewerMark: a newer controller wrote its mark, so it is listed and not changed.
	hasNewerMark bool
}

// newVM returns the VM of a guest; false if it is not a VM of the Kubernetes cluster.
func newVM(kubeCluster string, snapshot *observed.Snapshot, guest observed.Guest) (VM, bool) {
	if guest.Config == nil || guest.Template {
		return VM{}, false
	}
	id, ok := ReadIdentity(snapshot.Region, *guest.Config)
	if !ok || id.KubeCluster != kubeCluster || id.VMID != guest.VMID {
		return VM{}, false
	}
	mark, _ := ownership.Read(guest.Config.Description())
	newer := id.HasNewerMark(*guest.Config)
	if owns, _ := id.Owns(*guest.Config); !owns && !newer {
		return VM{}, false
	}
	return VM{
		Identity: id, Host: guest.Host, mark: mark, Claim: cmp.Or(mark.Name, guest.Name), Name: guest.Name, hasNewerMark: newer,
		Status:  guest.Status,
		HAState: guest.HAState,
		Config:  *guest.Config,
	}, true
}

// NewVM returns the VM with an identity that was verified in its configuration.
func NewVM(id Identity, host string, cfg proxmox.VMConfig) VM {
	mark, _ := ownership.Read(cfg.Description())
	return VM{Identity: id, Host: host, Config: cfg, mark: mark, Claim: mark.Name, Name: cfg.Name()}
}

// HasBootDrive reports whether the VM has a boot drive, as far as its mark shows.
func (v VM) HasBootDrive() bool { return v.mark.Boot != nil }

// AttachedBootDrive returns the volume of the attached boot drive; empty if there is none.
func (v VM) AttachedBootDrive() string {
	drives := v.Config.Drives().All()
	if i := slices.IndexFunc(drives, func(d proxmox.Drive) bool { return d.VolumeID == v.BootDriveVolume(d.Storage) }); i >= 0 {
		return drives[i].VolumeID
	}
	return ""
}

// ProviderID returns the VM's provider ID.
func (v VM) ProviderID() string {
	return v1alpha1.ProviderID{Region: v.Region, VMID: v.VMID}.String()
}

// DestroyCommand returns the command with which root deletes the VM on its Host.
func (v VM) DestroyCommand() string {
	return fmt.Sprintf("qm stop %d && qm destroy %d --purge", v.VMID, v.VMID)
}

// UnderHA reports whether Proxmox's HA starts and stops the VM: it does not act on
// ignored resources.
func (v VM) UnderHA() bool { return v.HAState != "" && v.HAState != "ignored" }
