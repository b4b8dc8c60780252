// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// IsOurs reports whether an object is a Claim of our NodeClasses.
func IsOurs(o client.Object) bool {
	claim, ok := o.(*karpv1.NodeClaim)
	return ok && claim.Spec.NodeClassRef != nil && claim.Spec.NodeClassRef.Group == v1alpha1.Group
}

// LaunchedByOther reports whether another controller launched a Claim, and it was not adopted.
func LaunchedByOther(claim *karpv1.NodeClaim) bool {
	return claim.Status.ProviderID != "" && claim.Annotations[v1alpha1.AnnotationLaunchedBy] == ""
}

// CheckAdoption returns a *BlockedError if a VM at the VMID of a Claim that another controller launched
// must neither be changed nor destroyed: it has no ownership mark yet, or the mark does not match. An
// administrator adopts such a VM by adding the mark to its notes. It returns nil for the VM of a third party.
func (d Deps) CheckAdoption(ctx context.Context, claim *karpv1.NodeClaim, id Identity, host string, cfg proxmox.VMConfig) error {
	uuid := strings.ToLower(cfg.SMBIOS().UUID)
	expected := id
	if uuid != id.ClaimUID {
		expected.UUID = uuid
	}
	owns, why := id.Owns(cfg)
	if !owns && !id.isNamedBy(cfg) {
		return nil
	}
	if _, marked := ReadIdentity(id.Region, cfg); !marked {
		return &BlockedError{Reason: v1alpha1.EventVMNotAdopted, Message: fmt.Sprintf("another controller created VM %d on host %s, and it has no ownership mark, so it is not changed; "+
			"to adopt it, append this line to its notes in the web interface; or delete it by hand: %s", id.VMID, host, expected.MarkComment())}
	}
	if why == "" {
		why = d.mismatch(ctx, claim, id, cfg)
	}
	if why == "" {
		return nil
	}
	return &BlockedError{Reason: v1alpha1.EventAdoptionRefused, Message: fmt.Sprintf("VM %d on host %s has an ownership mark, but is not adopted, and is neither changed nor deleted: %s; the mark that would match is: %s",
		id.VMID, host, why, expected.MarkComment())}
}

// mismatch returns how a VM with the ownership mark of a Claim differs from what the Claim and its Node
// show; empty if it does not.
func (d Deps) mismatch(ctx context.Context, claim *karpv1.NodeClaim, id Identity, cfg proxmox.VMConfig) string {
	uuid, mark := cfg.SMBIOS().UUID, Identity{}
	if found, ok := ReadIdentity(id.Region, cfg); ok {
		mark = found
	}
	switch {
	case cfg.IsTemplate():
		return "it is a template"
	case cfg.Lock() != "":
		return fmt.Sprintf("it is locked (%s), and is adopted when it is unlocked", cfg.Lock())
	case !strings.EqualFold(uuid, mark.uuid()):
		return fmt.Sprintf("its SMBIOS UUID is %q, and the mark was written for %q", uuid, mark.uuid())
	case cfg.Name() != claim.Name:
		return fmt.Sprintf("its name is %q, want the name of the NodeClaim, %q", cfg.Name(), claim.Name)
	case claim.Status.NodeName == "":
		return "" // it never joined, so there is no Node to compare with
	}
	node := &corev1.Node{}
	err := d.Kube.Get(ctx, types.NamespacedName{Name: claim.Status.NodeName}, node)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Sprintf("reading node %s: %v", claim.Status.NodeName, err)
	}
	if found := node.Status.NodeInfo.SystemUUID; found != "" && !strings.EqualFold(found, uuid) {
		return fmt.Sprintf("node %s reports the system UUID %s, and the SMBIOS UUID of the VM is %s: the node does not run in this VM", node.Name, found, uuid)
	}
	return ""
}

const (
	// unlistedVMInterval is the minimum interval between two reads of a VM that no list shows.
	unlistedVMInterval = 15 * time.Minute
	// unlistedRegionInterval is the minimum interval between two such reads in a region,
	// regardless of the number of VMs.
	unlistedRegionInterval = time.Minute
)

// Adopter adopts VMs that another controller created and that have our ownership mark.
type Adopter struct {
	deps Deps
	// read has the UIDs of Claims, and the regions, whose next read of an unlisted VM is not due.
	read *cache.Expiring
}

// NewAdopter returns an Adopter.
func NewAdopter(deps Deps) *Adopter {
	return &Adopter{deps: deps, read: cache.NewExpiringWithClock(deps.Clock)}
}

// isNotVisible reports whether the token may not read the VM of a Claim that no list shows. It
// makes no call, and returns false, until the next read is due.
func (a *Adopter) isNotVisible(ctx context.Context, claim *karpv1.NodeClaim, at v1alpha1.ProviderID, pve proxmox.Client, snapshot *observed.Snapshot) bool {
	_, vmRead := a.read.Get(claim.UID)
	_, regionRead := a.read.Get(at.Region)
	if vmRead || regionRead {
		return false
	}
	a.read.Set(claim.UID, nil, unlistedVMInterval)
	a.read.Set(at.Region, nil, unlistedRegionInterval)
	ctx, cancel := context.WithTimeout(ctx, a.deps.Settings.OperationTimeout)
	defer cancel()
	return IsNotVisible(ConfirmAbsent(ctx, pve, snapshot, at.VMID))
}

// Adopt adopts the VM of a Claim that another controller launched, if an administrator added our ownership
// mark to its notes. It reads the VM, and changes nothing of it. It returns false if there is no such VM, or if
// no list shows it and its next read is not due. A *BlockedError explains how to adopt the VM, what does not
// match, or that the token may not read it.
func (a *Adopter) Adopt(ctx context.Context, claim *karpv1.NodeClaim) (bool, error) {
	at, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	pve, configured := a.deps.Clients[at.Region]
	snapshot := a.deps.Inventory.View().Snapshots[at.Region]
	if err != nil || !configured || snapshot == nil {
		return false, nil // it is no VM of a region that was read
	}
	guest, listed := snapshot.Guests[at.VMID]
	notVisible := &BlockedError{Reason: v1alpha1.EventVMNotVisible, Message: NotVisibleMessage(at.Region, at.VMID, "adopted")}
	switch {
	case !listed && a.isNotVisible(ctx, claim, at, pve, snapshot):
		return false, notVisible
	case !listed, guest.Kind != proxmox.KindQEMU, !snapshot.IsOnline(guest.Host):
		return false, nil
	}
	ctx, release, ok := a.deps.Guard.AcquireLaunch(ctx, string(claim.UID))
	if !ok {
		return false, ErrClaimBusy
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, a.deps.Settings.OperationTimeout)
	defer cancel()
	// The cached configuration may be hours old.
	cfg, err := pve.VMConfig(ctx, guest.Host, at.VMID)
	if IsNotVisible(err) {
		return false, notVisible
	}
	if err != nil {
		return false, IgnoreNotFound(err) // it was migrated or deleted
	}
	id := NewIdentity(a.deps.KubeCluster, at, claim)
	if err := a.deps.CheckAdoption(ctx, claim, id, guest.Host, cfg); err != nil {
		return false, err
	}
	if owns, _ := id.Owns(cfg); !owns {
		return false, nil
	}
	a.deps.Inventory.InvalidateConfig(at.Region, at.VMID)
	return true, Annotate(ctx, a.deps.Kube, claim, map[string]string{v1alpha1.AnnotationLaunchedBy: v1alpha1.LaunchedByAdopted})
}
