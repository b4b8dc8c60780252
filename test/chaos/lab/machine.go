// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// machineHost is the host of the classes' machine.
const machineHost = "pve1"

// addMachine adds a machine with a retained disk to a class.
func addMachine(class *v1alpha1.ProxmoxNodeClass) {
	class.Spec.Machines = []v1alpha1.Machine{{Name: "machine", Zone: machineHost}}
	class.Spec.Disks = append(class.Spec.Disks, v1alpha1.Disk{Name: "retained", Size: "5Gi", Storage: "local-lvm", Retain: true})
}

// allowRetainedDisks grants the token what docs/permissions.md lists for retained disks.
func allowRetainedDisks(s *pvesim.Scenario) {
	s.Roles = append(s.Roles, pvesim.Role{ID: "KarpenterRetained", Privileges: []string{"VM.Config.Disk"}})
	s.ACLs = append(s.ACLs, pvesim.ACL{Path: fmt.Sprintf("/vms/%d", proxmox.RetainedVMID), Role: "KarpenterRetained", User: "kubernetes@pve"})
}

// retainedViolations checks that the machine has exactly one retained disk once a VM was
// launched, that it stays the same one, and that the VM has it.
func (e *Env) retainedViolations(ctx context.Context, vms int) (violations []string) {
	if !e.machine {
		return nil
	}
	volumes, err := e.admin.Volumes(ctx, machineHost, "local-lvm", "images")
	if err != nil {
		return []string{fmt.Sprintf("listing retained disks: %v", err)}
	}
	var found []string
	for _, volume := range volumes {
		if volume.VMID == proxmox.RetainedVMID {
			found = append(found, volume.ID)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(found) > 1:
		return []string{fmt.Sprintf("the machine has the retained disks %v, want one", found)}
	case len(found) == 1 && e.retained == "":
		e.retained = found[0]
	case len(found) == 0 && (e.retained != "" || vms > 0):
		return []string{fmt.Sprintf("the retained disk %s is gone", e.retained)}
	case len(found) == 1 && found[0] != e.retained:
		return []string{fmt.Sprintf("the retained disk is %s, want %s", found[0], e.retained)}
	}
	return nil
}
