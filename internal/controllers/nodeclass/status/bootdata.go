// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// rendering is when the boot data of a class was last rendered, and how that went.
type rendering struct {
	uid        types.UID
	generation int64
	at         time.Time
	err        error
}

// bootData renders the templates for an imaginary VM, or reads what Proxmox will make
// boot data of.
func (c *Checker) bootData(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) {
	conditions := class.StatusConditions()
	if options := class.Spec.MetadataOptions; !options.Rendered() && !options.ProxmoxDrive() {
		conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
		return
	}
	if err := c.render(ctx, class); err != nil {
		conditions.SetFalse(v1alpha1.ConditionInstanceMetadataOptionsReady, v1alpha1.ReasonMetadataOptionsNotFound, err.Error())
		return
	}
	conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
}

// render renders the templates, unless that was done a moment ago for the same
// class: the inventory changes often, Secrets seldom.
func (c *Checker) render(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	c.mu.Lock()
	last, ok := c.rendered[class.Name]
	c.mu.Unlock()
	now := c.deps.Clock.Now()
	if ok && last.uid == class.UID && last.generation == class.Generation && last.err == nil && now.Sub(last.at) < recheck/2 {
		return nil
	}
	err := c.deps.Boot.Check(ctx, c.inventory.View(), class)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rendered[class.Name] = rendering{uid: class.UID, generation: class.Generation, at: now, err: err}
	return err
}
