// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// deleteLeakedDisks deletes the disks that the destroy of a VM left. No configuration refers to them any
// more, so events name those that remain.
func (r *hostReconciler) deleteLeakedDisks(ctx context.Context, existing Existing, destroy proxmox.TaskStatus) {
	leaks, err := r.tasks.DeleteLeakedDisks(ctx, r.client, existing.VMID, destroy)
	if err != nil {
		r.reportLeak(ctx, existing.VMID, fmt.Sprintf("disks of it may remain, because the log of task %s cannot be read", destroy.UPID), err,
			fmt.Sprintf("list them on the host as root with pvesm list %s --vmid %d and delete them with pvesm free", storageOf(existing), existing.VMID))
	}
	for _, leak := range leaks {
		r.reportLeak(ctx, existing.VMID, fmt.Sprintf("its disk %s could not be deleted", leak.Volume), leak,
			"if no guest uses the disk, run on the host as root: pvesm free "+leak.Volume)
	}
}

// reportLeak reports which disks of a destroyed VM remain, and how to delete them.
func (r *hostReconciler) reportLeak(ctx context.Context, vmid int, leak string, err error, fix string) {
	message := fmt.Sprintf("template %d is destroyed, but %s: %s; %s", vmid, leak, rootMessage(err), fix)
	log.FromContext(ctx).Error(err, "deleting leaked disks failed", "vmid", vmid, "host", r.Host, "region", r.Region, "message", message)
	r.publish(corev1.EventTypeWarning, v1alpha1.EventTemplateDiskNotDeleted, r.displayName(r.Region, r.Host)+": "+message)
}
