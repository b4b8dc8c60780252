// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
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

// isAdopted reports whether a Claim's VM was adopted, or is to be. On a Claim that this
// controller launched the annotation has no effect: a NodePool may set it on all of them.
func isAdopted(claim *karpv1.NodeClaim) bool {
	if claim.Annotations[v1alpha1.AnnotationAdopt] == "" {
		return false
	}
	return claim.Annotations[v1alpha1.AnnotationLaunchedBy] != v1alpha1.LaunchedByVersion
}

// isUnadopted reports whether a VM belongs to a Claim that another controller launched
// and that was not adopted. It has no mark; its name or SMBIOS serial names the Claim.
// That is enough to keep the Claim, and not enough to destroy the VM.
func isUnadopted(claim *karpv1.NodeClaim, vmid int, cfg proxmox.VMConfig) bool {
	if _, marked := ReadIdentity("", cfg); marked || !LaunchedByOther(claim) || cfg.IsTemplate() {
		return false
	}
	return cfg.Name() == claim.Name || cfg.SMBIOS().Serial == vmconfig.SMBIOSSerial(claim.Name, vmid)
}

// UnadoptedMessage explains how to adopt the VM of a Claim that another controller
// launched; empty if the VM is not such a VM.
func UnadoptedMessage(claim *karpv1.NodeClaim, vmid int, host string, cfg proxmox.VMConfig) string {
	if !isUnadopted(claim, vmid, cfg) {
		return ""
	}
	return fmt.Sprintf("another controller created VM %d on host %s, and it has no ownership mark, so it is not changed; "+
		"to adopt it, run: kubectl annotate nodeclaim %s %s=%s; or delete it by hand", vmid, host, claim.Name, v1alpha1.AnnotationAdopt, strings.ToLower(cfg.SMBIOS().UUID))
}

const (
	// unlistedVMInterval is the minimum interval between two reads of a VM that no list shows.
	unlistedVMInterval = 15 * time.Minute
	// unlistedRegionInterval is the minimum interval between two such reads in a region,
	// regardless of the number of VMs.
	unlistedRegionInterval = time.Minute
)

// Adopter adopts VMs that another controller created.
type Adopter struct {
	deps Deps
	// read has the UIDs of Claims, and the regions, whose next read of an unlisted VM is not due.
	read *cache.Expiring
}

// NewAdopter returns an Adopter.
func NewAdopter(deps Deps) *Adopter {
	return &Adopter{deps: deps, read: cache.NewExpiringWithClock(deps.Clock)}
}

// Explain returns the reason and the message of an event that explains how to adopt the VM
// of a Claim that another controller launched, or that the token may not read it. The
// message is empty if there is no such VM, or if no list shows it and its next read is not due.
func (a *Adopter) Explain(ctx context.Context, claim *karpv1.NodeClaim) (reason, message string) {
	at, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return "", ""
	}
	pve, err := a.deps.Clients.Get(at.Region)
	snapshot := a.deps.Inventory.View().Snapshots[at.Region]
	if err != nil || snapshot == nil {
		return "", ""
	}
	guest, listed := snapshot.Guests[at.VMID]
	switch {
	case !listed && a.isNotVisible(ctx, claim, at, pve, snapshot):
		return v1alpha1.EventVMNotVisible, NotVisibleMessage(at.Region, at.VMID, "adopted")
	case !listed, guest.Config == nil:
		return "", ""
	}
	return v1alpha1.EventVMNotAdopted, UnadoptedMessage(claim, at.VMID, guest.Host, *guest.Config)
}

// isNotVisible reports whether the token may not read the VM of a Claim that no list shows. It
// makes no call, and returns false, until the next read is due.
func (a *Adopter) isNotVisible(ctx context.Context, claim *karpv1.NodeClaim, at v1alpha1.ProviderID, pve proxmox.Client, snapshot *inventory.Snapshot) bool {
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

// Adopt adopts the VM of a Claim that another controller launched. It requires the
// annotation with which an administrator names the VM by its SMBIOS UUID. Adopt writes
// our ownership mark to the VM's notes, and to the Claim what a launch would have
// written. Nothing else of the VM changes. An error explains what was found, and what is
// expected. After an error or a crash, the next call continues.
func (a *Adopter) Adopt(ctx context.Context, claim *karpv1.NodeClaim) error {
	at, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return fmt.Errorf("the NodeClaim's providerID does not name a VM: %w", err)
	}
	pve, err := a.deps.Clients.Get(at.Region)
	if err != nil {
		return err
	}
	ctx, release, ok := a.deps.Guard.AcquireLaunch(ctx, string(claim.UID))
	if !ok {
		return ErrClaimBusy
	}
	defer release()
	if err := a.deps.Inventory.Refresh(ctx, at.Region); err != nil {
		return fmt.Errorf("reading VM %d in region %s: %w", at.VMID, at.Region, err)
	}
	snapshot, ok := a.deps.Inventory.View().Snapshots[at.Region]
	if !ok {
		return fmt.Errorf("reading VM %d in region %s: %w", at.VMID, at.Region, ErrNotPolled)
	}
	guest, ok := snapshot.Guests[at.VMID]
	if !ok {
		return explainAbsent(ConfirmAbsent(ctx, pve, snapshot, at.VMID), at)
	}
	cfg, err := pve.VMConfig(ctx, guest.Host, at.VMID)
	if err != nil {
		return fmt.Errorf("reading VM %d on host %s: %w", at.VMID, guest.Host, err)
	}
	id := NewIdentity(a.deps.KubeCluster, at, claim)
	if owns, _ := id.Owns(cfg); !owns {
		if err := a.verify(ctx, claim, id, cfg); err != nil {
			return err
		}
		change := proxmox.ConfigChange{Set: map[string]string{"description": id.newMark(claim.Name).Notes(cfg.Description())}, Digest: cfg.Digest}
		if err := pve.UpdateVM(ctx, guest.Host, at.VMID, change); err != nil {
			return fmt.Errorf("writing the ownership mark: %w", err)
		}
	}
	return Annotate(ctx, a.deps.Kube, claim, map[string]string{
		v1alpha1.AnnotationLaunchedBy:      v1alpha1.LaunchedByAdopted,
		v1alpha1.AnnotationLaunchCompleted: a.deps.Clock.Now().UTC().Format(time.RFC3339),
		// Its boot data is not ours to delete.
		v1alpha1.AnnotationBootDataStatus: v1alpha1.BootDataInitialized,
	})
}

// explainAbsent returns why a VM that no list shows is not adopted. A VM that the token may
// not read is not reported as deleted.
func explainAbsent(err error, at v1alpha1.ProviderID) error {
	switch {
	case errors.Is(err, proxmox.ErrNotFound):
		return fmt.Errorf("region %s shows no VM %d", at.Region, at.VMID)
	case IsNotVisible(err):
		return errors.New(NotVisibleMessage(at.Region, at.VMID, "adopted"))
	}
	return fmt.Errorf("reading VM %d in region %s: %w", at.VMID, at.Region, err)
}

// verify compares the annotation with the VM and the Claim's Node. All must match: the
// VMID in the providerID, the name, the UUID, and the Node that runs in the VM.
func (a *Adopter) verify(ctx context.Context, claim *karpv1.NodeClaim, id Identity, cfg proxmox.VMConfig) error {
	uuid := strings.ToLower(cfg.SMBIOS().UUID)
	_, marked := ReadIdentity(id.Region, cfg)
	switch {
	case cfg.IsTemplate():
		return fmt.Errorf("VM %d is a template", id.VMID)
	case marked:
		_, why := id.Owns(cfg)
		return fmt.Errorf("VM %d has another owner: %s", id.VMID, why)
	case cfg.Lock() != "":
		return fmt.Errorf("VM %d is locked (%s), and is adopted when it is unlocked", id.VMID, cfg.Lock())
	case uuid == "" || uuid != id.UUID:
		return fmt.Errorf("annotation %s names the VM %q, and VM %d has the SMBIOS UUID %q", v1alpha1.AnnotationAdopt, id.UUID, id.VMID, uuid)
	case cfg.Name() != claim.Name:
		return fmt.Errorf("VM %d is named %q, want the name of the NodeClaim, %q", id.VMID, cfg.Name(), claim.Name)
	}
	if claim.Status.NodeName == "" {
		return nil // it never joined, so there is no Node to compare with
	}
	node := &corev1.Node{}
	err := a.deps.Kube.Get(ctx, types.NamespacedName{Name: claim.Status.NodeName}, node)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if found := node.Status.NodeInfo.SystemUUID; found != "" && !strings.EqualFold(found, uuid) {
		return fmt.Errorf("node %s reports the system UUID %s, VM %d has the SMBIOS UUID %s: the node does not run in this VM", node.Name, found, id.VMID, uuid)
	}
	return nil
}
