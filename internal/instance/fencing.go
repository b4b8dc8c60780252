// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// LastHost returns the Host that a Claim's VM was last seen on, otherwise the one it was launched on. It
// is empty if both are unknown.
func (d Deps) LastHost(claim *karpv1.NodeClaim) string {
	if id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID); err == nil {
		if guest, listed := d.Inventory.View().Guest(id.Region, id.VMID); listed {
			return guest.Host
		}
	}
	return cmp.Or(d.Launches.Host(string(claim.UID)), claim.Labels[corev1.LabelTopologyZone])
}

// IsFenced reports whether an administrator declared the Host of a Claim's VM as powered off,
// so the Claim may end without its VM. If that has no effect, why explains it.
func (d Deps) IsFenced(claim *karpv1.NodeClaim) (fenced bool, why string) {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	host, view := d.LastHost(claim), d.Inventory.View()
	if err != nil || !view.IsFenced(observed.HostName{Region: id.Region, Host: host}) {
		return false, ""
	}
	snapshot := view.Snapshots[id.Region]
	switch {
	case d.Clients[id.Region] == nil: // it is not polled, and the Claim is all that is known
	case snapshot == nil:
		// The VM may be on another Host, and write to disks that its successor would get.
		return false, fmt.Sprintf("region %s was not polled since the start of the controller, so the host of the VM is unknown; if the region does not exist any more, remove it from the cloud config", id.Region)
	case view.Unavailable(id.Region) == nil && snapshot.IsOnline(host):
		return false, "the host is online"
	}
	return true, ""
}

// FenceCommands are the commands that declare a Host as powered off.
func (d Deps) FenceCommands(host observed.HostName) string {
	return fmt.Sprintf(`kubectl proxmox fence %s, or with: kubectl patch configmap %s -n %s --type merge -p "data: {%s: 'time: $(date -u +%%FT%%TZ)'}"`,
		host, declared.FencingConfigMap, d.Settings.SystemNamespace, host.Key())
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
	host := d.LastHost(claim)
	return &BlockedError{Reason: v1alpha1.EventRegionNotConfigured, Message: fmt.Sprintf(
		"region %[1]s is not in the cloud config, so VM %[2]d on host %[3]s cannot be deleted: add the region again; or delete the VM by hand, and confirm that with: %[4]s; then delete the NodeClaim: kubectl delete nodeclaim %[5]s --wait=false",
		id.Region, id.VMID, host, d.FenceCommands(observed.HostName{Region: id.Region, Host: host}), claim.Name)}
}
