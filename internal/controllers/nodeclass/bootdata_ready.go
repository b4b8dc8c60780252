// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// classSpec identifies the spec of a NodeClass.
type classSpec struct {
	uid        types.UID
	generation int64
}

// setBootDataReady sets InstanceMetadataOptionsReady. It renders the boot data templates
// for a sample VM, or reads the options that Proxmox generates boot data from. It also
// sets the hash of the boot data, which stays while the boot data cannot be read. Without a
// reader of Secrets, as in simulations, it changes nothing.
func (c *Checker) setBootDataReady(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) {
	conditions := class.StatusConditions()
	if options := class.Spec.MetadataOptions; !options.IsRendered() && !options.UsesCloudInitDrive() {
		conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
		class.Status.BootDataHash = ""
		return
	}
	if c.deps.Boot.Reader == nil {
		return
	}
	// The inventory changes often, Secrets rarely.
	hash, err := c.bootData.Get(ctx, class.Name, classSpec{class.UID, class.Generation}, func(ctx context.Context) (string, error) {
		if err := c.deps.Boot.Check(ctx, c.inventory.View(), class); err != nil {
			return "", err
		}
		return c.deps.Boot.Hash(ctx, class)
	})
	if err != nil {
		conditions.SetFalse(v1alpha1.ConditionInstanceMetadataOptionsReady, v1alpha1.ReasonMetadataOptionsNotFound, err.Error())
		return
	}
	conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
	class.Status.BootDataHash = hash
}
