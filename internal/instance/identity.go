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
)

// Identity says whose a VM is. All of it must match before the VM is touched.
// A copy keeps the description but gets another VMID, and so does a restored
// backup: neither is ours, and that is right.
type Identity struct {
	// Region is implied by the Cluster that was asked; it is not in the block.
	Region string
	VMID   int
	// ClaimUID is also the VM's SMBIOS UUID, so that the guest's product UUID is
	// the Claim.
	ClaimUID string
	// KubeCluster is the UID of the kube-system namespace.
	KubeCluster string
	// UUID is the VM's SMBIOS UUID where that is not the Claim's: another controller
	// made the VM, and it was adopted.
	UUID string
}

// uuid is the SMBIOS UUID that the VM must have.
func (id Identity) uuid() string { return cmp.Or(id.UUID, id.ClaimUID) }

// identityOf is what the VM of a Claim must say of itself.
func (p *Provider) identityOf(at v1alpha1.ProviderID, claim *karpv1.NodeClaim) Identity {
	id := Identity{Region: at.Region, VMID: at.VMID, ClaimUID: string(claim.UID), KubeCluster: p.KubeCluster}
	if adopted(claim) {
		id.UUID = strings.ToLower(claim.Annotations[v1alpha1.AnnotationAdopt])
	}
	return id
}

// Notes are the words for people above the machine block.
type Notes struct {
	Claim, NodePool, NodeClass, InstanceType, CapacityType string
}

// Description is what the clone call writes into the VM's notes.
func Description(id Identity, n Notes, b *Binding, hooks []string) string {
	mark := id.markFor(n.Claim)
	mark.Hooks = hooks
	if b != nil {
		mark.CPUs, mark.Pin = b.CPUs, b.Pin
	}
	return mark.Notes(fmt.Sprintf("Karpenter managed instance, class=%s, capacity-type=%s\n\nnodepool=%s, claim=%s, type=%s",
		n.NodeClass, n.CapacityType, n.NodePool, n.Claim, n.InstanceType))
}

func (id Identity) markFor(claim string) ownership.Mark {
	return ownership.Mark{VMID: id.VMID, ClaimUID: id.ClaimUID, KubeCluster: id.KubeCluster, Name: claim, UUID: id.UUID}
}

// ReadIdentity finds who a VM says it belongs to. VMs without a mark, and
// Templates, belong to no Claim.
func ReadIdentity(region string, cfg proxmox.VMConfig) (Identity, bool) {
	m, ok := ownership.Read(cfg.Description())
	if !ok || m.ClaimUID == "" {
		return Identity{}, false
	}
	return Identity{Region: region, VMID: m.VMID, ClaimUID: m.ClaimUID, KubeCluster: m.KubeCluster, UUID: m.UUID}, true
}

// Owns tells whether the configuration read under this identity's VMID is the
// very VM that was made for it, and if not, why. A clone carries the block
// before it carries our SMBIOS fields, so the UUID is held against the Claim
// only once they were written.
func (id Identity) Owns(cfg proxmox.VMConfig) (bool, string) {
	got, ok := ReadIdentity(id.Region, cfg)
	switch {
	case !ok:
		return false, "its notes carry no ownership mark of ours"
	case got.VMID != id.VMID:
		return false, fmt.Sprintf("its ownership mark was made for VM %d: it is a copy or a restored backup", got.VMID)
	case got.KubeCluster != id.KubeCluster:
		return false, "it belongs to another Kubernetes cluster"
	case got.ClaimUID != id.ClaimUID:
		return false, "it belongs to another claim"
	case id.HasNewerMark(cfg):
		return false, "a newer controller wrote its ownership mark, which this one cannot read in full"
	case (Configured(cfg) || got.UUID != "") && !strings.EqualFold(cfg.SMBIOS().UUID, got.uuid()):
		return false, "its SMBIOS UUID is not the one that its ownership mark was made for"
	}
	return true, ""
}

// HasNewerMark tells whether the VM is this one, by a mark that a newer controller wrote.
// It is neither touched nor forgotten.
func (id Identity) HasNewerMark(cfg proxmox.VMConfig) bool {
	m, ok := ownership.Read(cfg.Description())
	return ok && m.Newer() && m.VMID == id.VMID && m.ClaimUID == id.ClaimUID && m.KubeCluster == id.KubeCluster
}

// HasLostMark tells whether the configuration is this VM's although its notes no longer
// say so: somebody replaced them. UUID and serial are ours alone, so it is not
// somebody else's; but what does not carry the mark is not destroyed.
func (id Identity) HasLostMark(cfg proxmox.VMConfig) bool {
	if _, marked := ReadIdentity(id.Region, cfg); marked || !Configured(cfg) {
		return false
	}
	bios := cfg.SMBIOS()
	return strings.EqualFold(bios.UUID, id.uuid()) && strings.HasSuffix(bios.Serial, fmt.Sprintf(";i=%d", id.VMID))
}

// mark is the mark by itself, for a person to put back.
func (id Identity) mark() string { return id.markFor("").Comment() }

// Configured tells whether our one configuration write has happened: it is
// atomic, so our SMBIOS serial stands for all of it.
func Configured(cfg proxmox.VMConfig) bool {
	return strings.HasPrefix(cfg.SMBIOS().Serial, "h=") && strings.Contains(cfg.SMBIOS().Serial, ";i=")
}

// smbiosSerial is what Proxmox's cloud controller manager and boot templates read.
func smbiosSerial(name string, vmid int) string { return fmt.Sprintf("h=%s;i=%d", name, vmid) }
