// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"fmt"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Identity identifies the VM of a Claim. All of it must match before the VM is
// changed. A copy, or a backup restored under another VMID, keeps the notes but has
// another VMID, so it does not match.
type Identity struct {
	// Region is that of the Cluster; it is not in the ownership mark.
	Region string
	VMID   int
	// ClaimName is the name of the Claim. It is not compared; empty if it is unknown.
	ClaimName string
	// ClaimUID is also the VM's SMBIOS UUID, so the guest can read it as its product UUID.
	ClaimUID string
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string
	// UUID is the VM's SMBIOS UUID in the ownership mark if it is not the Claim's: another
	// controller created the VM, and it was adopted.
	UUID string
}

// NewIdentity returns the identity of a Claim's VM.
func NewIdentity(kubeCluster string, at v1alpha1.ProviderID, claim *karpv1.NodeClaim) Identity {
	return Identity{Region: at.Region, VMID: at.VMID, ClaimName: claim.Name, ClaimUID: string(claim.UID), KubeCluster: kubeCluster}
}

// uuid returns the SMBIOS UUID that the VM must have.
func (id Identity) uuid() string { return cmp.Or(id.UUID, id.ClaimUID) }

func (id Identity) newMark(claim string) ownership.Mark {
	return ownership.Mark{VMID: id.VMID, ClaimUID: id.ClaimUID, KubeCluster: id.KubeCluster, Name: claim, UUID: id.UUID}
}

// MarkComment returns the ownership mark as a line that a user can add to the notes.
func (id Identity) MarkComment() string { return id.newMark(id.ClaimName).Comment() }

// ReadIdentity returns the identity in a VM's ownership mark; false if it has none.
// Templates belong to no Claim.
func ReadIdentity(region string, cfg proxmox.VMConfig) (Identity, bool) {
	m, ok := ownership.Read(cfg.Description())
	if !ok || m.ClaimUID == "" {
		return Identity{}, false
	}
	return Identity{Region: region, VMID: m.VMID, ClaimName: m.Name, ClaimUID: m.ClaimUID, KubeCluster: m.KubeCluster, UUID: m.UUID}, true
}

// Owns reports whether the configuration is that of the VM with this identity, and if
// not, why. A clone has the mark before it has our SMBIOS fields, so the UUID is
// compared only after they were written.
func (id Identity) Owns(cfg proxmox.VMConfig) (owns bool, why string) {
	found, ok := ReadIdentity(id.Region, cfg)
	switch {
	case !ok:
		return false, "its notes have no ownership mark of a VM"
	case found.VMID != id.VMID:
		return false, fmt.Sprintf("its ownership mark was written for VM %d: it is a copy or a restored backup", found.VMID)
	case found.KubeCluster != id.KubeCluster:
		return false, "it belongs to another Kubernetes cluster"
	case found.ClaimUID != id.ClaimUID:
		return false, "it belongs to another NodeClaim"
	case id.HasNewerMark(cfg):
		return false, "a newer controller wrote its ownership mark, which this one cannot read in full"
	case (vmconfig.IsConfigured(cfg, id.VMID) || found.UUID != "") && !strings.EqualFold(cfg.SMBIOS().UUID, found.uuid()):
		return false, "its SMBIOS UUID is not the one that its ownership mark was written for"
	}
	return true, ""
}

// HasNewerMark reports whether the VM has this identity in a mark that a newer
// controller wrote. Such a VM exists, but it is not changed.
func (id Identity) HasNewerMark(cfg proxmox.VMConfig) bool {
	m, ok := ownership.Read(cfg.Description())
	return ok && m.Newer() && m.VMID == id.VMID && m.ClaimUID == id.ClaimUID && m.KubeCluster == id.KubeCluster
}

// IsConfirmed reports whether a launch of this Claim configured the VM: its SMBIOS serial and UUID
// are those of the Claim. A user who may only edit notes can change neither.
func (id Identity) IsConfirmed(cfg proxmox.VMConfig) bool {
	return vmconfig.IsConfigured(cfg, id.VMID) && strings.EqualFold(cfg.SMBIOS().UUID, id.ClaimUID)
}

// BootDriveName returns the file name of a Claim's boot drive. It contains the
// Kubernetes cluster and the Claim, so an orphan can be recognized.
func (id Identity) BootDriveName() string {
	return fmt.Sprintf("karpenter-%s-%s.iso", ShortClusterID(id.KubeCluster), id.ClaimUID)
}

// BootDriveVolume returns the volume of a Claim's boot drive on a storage.
func (id Identity) BootDriveVolume(storage string) string {
	return storage + ":iso/" + id.BootDriveName()
}

// ShortClusterID returns enough of a Kubernetes cluster's UID to distinguish a few clusters.
func ShortClusterID(uid string) string {
	head, _, _ := strings.Cut(uid, "-")
	return head
}
