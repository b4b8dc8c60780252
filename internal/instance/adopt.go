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
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// LaunchedByOther tells whether another controller launched a Claim: the plan of every
// launch of ours stands on its Claim before core learns a providerID.
func LaunchedByOther(claim *karpv1.NodeClaim) bool {
	return claim.Status.ProviderID != "" && claim.Annotations[v1alpha1.AnnotationLaunchIntent] == ""
}

// adopted tells whether a Claim's VM was handed over, or is to be. On a Claim of our
// own the annotation means nothing: a NodePool may put it on all of them.
func adopted(claim *karpv1.NodeClaim) bool {
	if claim.Annotations[v1alpha1.AnnotationAdopt] == "" {
		return false
	}
	in, _, err := ReadIntent(claim)
	return LaunchedByOther(claim) || (err == nil && in.TemplateID == 0)
}

// unadopted tells whether a VM is that of a Claim which another controller launched,
// and nobody has handed it over. It carries no mark: what says that it is the one is
// its name or its SMBIOS serial, which name the Claim. That is enough to leave the VM
// alone and to keep its Claim, and not enough to destroy it.
func unadopted(claim *karpv1.NodeClaim, vmid int, cfg proxmox.VMConfig) bool {
	if _, marked := ReadIdentity("", cfg); marked || !LaunchedByOther(claim) || cfg.IsTemplate() {
		return false
	}
	return cfg.Name() == claim.Name || cfg.SMBIOS().Serial == smbiosSerial(claim.Name, vmid)
}

// refuseUnadopted keeps a VM that another controller made. It is not somebody else's
// either: to call it gone would leave it running with nobody to know of it.
func (r *removal) refuseUnadopted(ctx context.Context, host string) error {
	if !LaunchedByOther(r.claim) {
		return nil
	}
	cfg, err := r.client.VMConfig(ctx, host, r.id.VMID)
	if err != nil || !unadopted(r.claim, r.id.VMID, cfg) {
		return blockedBy(ignoreNotFound(err), fmt.Sprintf("host %s does not answer", host))
	}
	return &BlockedError{Reason: BlockedNotAdopted, Message: notAdopted(r.claim, r.id.VMID, host, cfg)}
}

func notAdopted(claim *karpv1.NodeClaim, vmid int, host string, cfg proxmox.VMConfig) string {
	return fmt.Sprintf("another controller made VM %d on host %s, and it carries no ownership mark, so that it is left alone; "+
		"to hand it over, run: kubectl annotate nodeclaim %s %s=%s; or remove it by hand", vmid, host, claim.Name, v1alpha1.AnnotationAdopt, strings.ToLower(cfg.SMBIOS().UUID))
}

// AdoptionError says why a VM is not taken over: what was found, and what would be right.
type AdoptionError struct{ message string }

func (e *AdoptionError) Error() string { return e.message }

func refusef(format string, args ...any) error { return &AdoptionError{fmt.Sprintf(format, args...)} }

// Adopt takes over the VM of a Claim that another controller launched, on the word of
// an admin who names the VM by its SMBIOS UUID: it gets our mark, and the Claim what a
// launch of ours would have left. Nothing else of the VM changes. An *AdoptionError
// means that the VM was left alone; a crash in between is taken up by the next call.
func (p *Provider) Adopt(ctx context.Context, claim *karpv1.NodeClaim) error {
	at, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return refusef("the claim's providerID does not name a VM: %s", err)
	}
	pve, err := p.client(at.Region)
	if err != nil {
		return &AdoptionError{err.Error()}
	}
	ctx, release, ok := p.guard.launch(ctx, string(claim.UID))
	if !ok {
		return ErrClaimBusy
	}
	defer release()
	if err := p.Inventory.Refresh(ctx, at.Region); err != nil {
		return fmt.Errorf("looking for VM %d in region %s, %w", at.VMID, at.Region, err)
	}
	guest, ok := p.Inventory.View().Guest(at.Region, at.VMID)
	if !ok {
		return refusef("region %s shows no VM %d", at.Region, at.VMID)
	}
	cfg, err := pve.VMConfig(ctx, guest.Host, at.VMID)
	if err != nil {
		return fmt.Errorf("reading VM %d on host %s, %w", at.VMID, guest.Host, err)
	}
	id := p.identityOf(at, claim)
	if ours, _ := id.Owns(cfg); !ours {
		if err := p.mayAdopt(ctx, claim, id, cfg); err != nil {
			return err
		}
		change := proxmox.ConfigChange{Set: map[string]string{"description": id.markFor(claim.Name).Notes(cfg.Description())}, Digest: cfg.Digest}
		if err := pve.UpdateVM(ctx, guest.Host, at.VMID, change); err != nil {
			return fmt.Errorf("writing the ownership mark of VM %d on host %s, %w", at.VMID, guest.Host, err)
		}
	}
	return annotate(ctx, p.Kube, claim, map[string]string{
		v1alpha1.AnnotationLaunchIntent:    adoptedIntent(claim, at, guest, cfg).Encode(),
		v1alpha1.AnnotationLaunchCompleted: p.Clock.Now().UTC().Format(time.RFC3339),
		// Whatever it booted with is not ours to take back.
		v1alpha1.AnnotationBootDataStatus: v1alpha1.BootDataInitialized,
	})
}

// mayAdopt holds the admin's word against the VM and the Claim's Node. Everything must
// fit: the VMID in the providerID, the name, the UUID, and the Node that runs in it.
func (p *Provider) mayAdopt(ctx context.Context, claim *karpv1.NodeClaim, id Identity, cfg proxmox.VMConfig) error {
	uuid := strings.ToLower(cfg.SMBIOS().UUID)
	_, marked := ReadIdentity(id.Region, cfg)
	switch {
	case cfg.IsTemplate():
		return refusef("VM %d is a template", id.VMID)
	case marked:
		_, why := id.Owns(cfg)
		return refusef("VM %d is somebody else's: %s", id.VMID, why)
	case cfg.Lock() != "":
		return fmt.Errorf("adopting VM %d: it is locked (%s): %w", id.VMID, cfg.Lock(), proxmox.ErrLocked)
	case uuid == "" || uuid != id.UUID:
		return refusef("annotation %s names the VM %q, and VM %d has the SMBIOS UUID %q", v1alpha1.AnnotationAdopt, id.UUID, id.VMID, uuid)
	case cfg.Name() != claim.Name:
		return refusef("VM %d is named %q, want the name of the claim, %q", id.VMID, cfg.Name(), claim.Name)
	}
	if claim.Status.NodeName == "" {
		return nil // it never joined; the admin's word has to do
	}
	node := &corev1.Node{}
	err := p.Kube.Get(ctx, types.NamespacedName{Name: claim.Status.NodeName}, node)
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	if found := node.Status.NodeInfo.SystemUUID; found != "" && !strings.EqualFold(found, uuid) {
		return refusef("node %s reports the system UUID %s, VM %d has the SMBIOS UUID %s: the node does not run in this VM", node.Name, found, id.VMID, uuid)
	}
	return nil
}

// adoptedIntent is what a launch of ours would have decided for a VM that is there. Of
// its template nothing is known, and so nothing of it drifts.
func adoptedIntent(claim *karpv1.NodeClaim, at v1alpha1.ProviderID, guest inventory.Guest, cfg proxmox.VMConfig) Intent {
	in := Intent{
		Region: at.Region, Host: guest.Host, VMID: at.VMID,
		InstanceType: claim.Labels[corev1.LabelInstanceTypeStable], CapacityType: claim.Labels[karpv1.CapacityTypeLabelKey],
		Cores: cfg.Compute().Cores() * cfg.Compute().Sockets(), MemoryMiB: cfg.Compute().MemoryMiB(), Pool: guest.Pool, Full: true,
		MACs: map[string]string{}, Time: claim.CreationTimestamp.UTC(),
	}
	if zone := claim.Labels[corev1.LabelTopologyZone]; zone != "" {
		in.Host = zone // if it is elsewhere by now, it was migrated
	}
	if disk, ok := cfg.Drives().Boot(); ok {
		in.DiskBytes, in.Storage = disk.SizeBytes, disk.Storage
	}
	for _, nic := range cfg.Network().NICs() {
		in.MACs[nic.Slot] = nic.MAC
	}
	return in
}

// Unadopted says what to do about a Claim whose VM another controller made; empty where
// the view shows no such VM.
func (p *Provider) UnadoptedMessage(claim *karpv1.NodeClaim) string {
	at, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil || !LaunchedByOther(claim) {
		return ""
	}
	guest, ok := p.Inventory.View().Guest(at.Region, at.VMID)
	if !ok || guest.Config == nil || !unadopted(claim, at.VMID, *guest.Config) {
		return ""
	}
	return notAdopted(claim, at.VMID, guest.Host, *guest.Config)
}
