// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// bootDataCheck is the last check of a NodeClass's boot data.
type bootDataCheck struct {
	uid        types.UID
	generation int64
	at         time.Time
	err        error
}

// setBootDataReady sets InstanceMetadataOptionsReady. It renders the boot data templates
// for a sample VM, or reads the options that Proxmox generates boot data from.
func (c *Checker) setBootDataReady(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) {
	conditions := class.StatusConditions()
	if options := class.Spec.MetadataOptions; !options.IsRendered() && !options.UsesCloudInitDrive() {
		conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
		return
	}
	if err := c.checkBootData(ctx, class); err != nil {
		conditions.SetFalse(v1alpha1.ConditionInstanceMetadataOptionsReady, v1alpha1.ReasonMetadataOptionsNotFound, err.Error())
		return
	}
	conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
}

// checkBootData checks the boot data, unless that succeeded recently for the same
// generation: the inventory changes often, Secrets rarely.
func (c *Checker) checkBootData(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	c.mu.Lock()
	last, ok := c.bootData[class.Name]
	c.mu.Unlock()
	now := c.deps.Clock.Now()
	if ok && last.uid == class.UID && last.generation == class.Generation && last.err == nil && now.Sub(last.at) < recheckInterval/2 {
		return nil
	}
	err := c.deps.Boot.Check(ctx, c.inventory.View(), class)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bootData[class.Name] = bootDataCheck{uid: class.UID, generation: class.Generation, at: now, err: err}
	return err
}
