// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// RecordedHost returns the Host of a Claim's VM as the Claim records it; empty if it does
// not.
func RecordedHost(claim *karpv1.NodeClaim) string {
	return cmp.Or(claim.Annotations[v1alpha1.AnnotationHost], claim.Labels[corev1.LabelTopologyZone])
}

// LastHost returns the Host that a Claim's VM was last seen on: that of the last Snapshot,
// otherwise the recorded one. It is empty if both are unknown.
func (d Deps) LastHost(claim *karpv1.NodeClaim) string {
	if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil {
		if guest, listed := d.Inventory.View().Guest(id.Region, id.VMID); listed {
			return guest.Host
		}
	}
	return RecordedHost(claim)
}

// IsFenced reports whether an administrator declared the Host of a Claim's VM as fenced.
// If the annotation has no effect, why explains it.
func (d Deps) IsFenced(claim *karpv1.NodeClaim) (fenced bool, why string) {
	named, ok := claim.Annotations[v1alpha1.AnnotationHostFenced]
	if !ok {
		return false, ""
	}
	host := d.LastHost(claim)
	if named == "" || named != host {
		return false, fmt.Sprintf("it names host %[1]q, but the VM was last seen on host %[2]q; if that host is powered off, run: kubectl annotate nodeclaim %[3]s %[4]s=%[2]s --overwrite; then delete the NodeClaim: kubectl delete nodeclaim %[3]s --wait=false",
			named, host, claim.Name, v1alpha1.AnnotationHostFenced)
	}
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return false, "the NodeClaim has no VM"
	}
	view := d.Inventory.View()
	if snapshot := view.Snapshots[id.Region]; snapshot != nil && view.Unavailable(id.Region) == nil && snapshot.Hosts[host].Online {
		return false, fmt.Sprintf("host %[1]s is online, so its VM is deleted with the NodeClaim as usual; remove the annotation: kubectl annotate nodeclaim %[2]s %[3]s-",
			host, claim.Name, v1alpha1.AnnotationHostFenced)
	}
	return true, ""
}

// FenceIgnored returns why the annotation of a Claim that declares its Host as fenced has
// no effect; empty if it has, or there is none.
func (p *Provider) FenceIgnored(claim *karpv1.NodeClaim) string {
	_, why := p.deps.IsFenced(claim)
	return why
}

// CheckRegion returns a BlockedError if the region of a Claim's VM is not in the cloud
// config. The VM may exist, but it can be neither read nor deleted.
func (p *Provider) CheckRegion(claim *karpv1.NodeClaim) *BlockedError {
	return p.deps.CheckRegion(claim)
}

// CheckRegion implements Provider.CheckRegion.
func (d Deps) CheckRegion(claim *karpv1.NodeClaim) *BlockedError {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if planned := err == nil; !planned || d.Clients[id.Region] != nil {
		return nil
	}
	return &BlockedError{Reason: v1alpha1.EventRegionNotConfigured, Message: fmt.Sprintf(
		"region %[1]s is not in the cloud config, so VM %[2]d on host %[3]s cannot be deleted: add the region again; or delete the VM by hand, then run: kubectl annotate nodeclaim %[4]s %[5]s=%[3]s; then delete the NodeClaim: kubectl delete nodeclaim %[4]s --wait=false",
		id.Region, id.VMID, d.LastHost(claim), claim.Name, v1alpha1.AnnotationHostFenced)}
}
