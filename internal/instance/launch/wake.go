// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

// ensureAwake returns nil if neither the Host of the VM nor that of the Template was shut down to
// save energy, or both are up again. While the records about them cannot be read, it returns
// instance.ErrHostPowerUnknown. Until then, and while the records are outdated, it returns
// instance.ErrHostAsleep: the reservation of the Claim makes the power controller wake
// them. A launch that may have sent requests does not wait: its Host is in use, so a record about it
// is removed again. After a restart, a clone is listed, unless the token may read only a resource pool;
// then its VM is deleted as an orphan.
func (a *attempt) ensureAwake() error {
	view, uid := a.deps.Inventory.View(), string(a.claim.UID)
	if a.intent.IsListed(view) || a.deps.Launches.Get(uid).Started {
		return nil
	}
	host, _ := view.Host(a.intent.Region, a.intent.Host)
	if host.IsAvailable(inventory.Start) {
		host, _ = view.Host(a.intent.Region, a.intent.TemplateHost)
	}
	progress := a.deps.Launches.Progress(uid)
	unknown, isUnknown := host.Condition(inventory.PowerUnknown)
	switch {
	case unknown.Message != "":
		return fmt.Errorf("VM %d waits for host %s: %w: %s; allow the controller to get and update this ConfigMap, as the Role of the chart does",
			a.intent.VMID, host.Name, instance.ErrHostPowerUnknown, unknown.Message)
	case isUnknown:
		return a.waitingFor(host)
	case host.Sleep == declared.WakeFailed:
		return failf(v1alpha1.EventHostWakeFailed, "host %s was shut down to save energy and did not wake up within %s", host.Name, host.Power.WakeTimeout)
	case host.Sleep != "":
		a.reach(instance.PhaseHostWaking)
		return a.waitingFor(host)
	case progress.HasReached(instance.PhaseHostWaking):
		a.reach(instance.PhaseHostAwake)
	}
	return nil
}

func (a *attempt) waitingFor(host inventory.HostState) error {
	return fmt.Errorf("VM %d: %w: %s", a.intent.VMID, instance.ErrHostAsleep, host.Name)
}
