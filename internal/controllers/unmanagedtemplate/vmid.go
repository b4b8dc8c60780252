// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package unmanagedtemplate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// vmidProblem describes the guests that have the VMID of the spec and cannot be used. It
// returns "" if there is none.
func vmidProblem(view inventory.View, spec v1alpha1.ProxmoxUnmanagedTemplateSpec) string {
	var problems []string
	for _, region := range slices.Sorted(maps.Keys(view.Snapshots)) {
		guest, ok := view.Guest(region, int(spec.VMID))
		if ok && (spec.Region == "" || spec.Region == region) {
			problems = append(problems, fmt.Sprintf("spec.vmid %d on host %s/%s is %s", spec.VMID, region, guest.Host, mismatch(guest, spec)))
		}
	}
	return strings.Join(problems, "; ")
}

// mismatch describes a guest that has the VMID of the spec and cannot be used.
func mismatch(guest observed.Guest, spec v1alpha1.ProxmoxUnmanagedTemplateSpec) string {
	switch {
	case guest.Kind != proxmox.KindQEMU:
		return fmt.Sprintf("the container %q; set the VMID of a template of VMs", guest.Name)
	case !guest.Template:
		return fmt.Sprintf("the VM %q, which is not a template; set the VMID of a template, or convert the VM: qm template %d", guest.Name, guest.VMID)
	case guest.IsSlot():
		return fmt.Sprintf("the slot template %q, which is for one VM; set the VMID of another template", guest.Name)
	case spec.TemplateName != "" && spec.TemplateName != guest.Name:
		return fmt.Sprintf("the template %q, but spec.templateName is %q; fix one of them, or remove spec.templateName", guest.Name, spec.TemplateName)
	case guest.Config == nil:
		return fmt.Sprintf("the template %q, whose configuration has not been read yet", guest.Name)
	}
	return fmt.Sprintf("the template %q with tags %q, but spec.tags is %q; fix one of them, or remove spec.tags",
		guest.Name, strings.Join(guest.Tags, ", "), strings.Join(spec.Tags, ", "))
}
