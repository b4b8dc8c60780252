// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

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
	hash       string
	err        error
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
	hash, err := c.checkBootData(ctx, class)
	if err != nil {
		conditions.SetFalse(v1alpha1.ConditionInstanceMetadataOptionsReady, v1alpha1.ReasonMetadataOptionsNotFound, err.Error())
		return
	}
	conditions.SetTrue(v1alpha1.ConditionInstanceMetadataOptionsReady)
	class.Status.BootDataHash = hash
}

// checkBootData checks the boot data and returns its hash, unless that succeeded recently for the same
// generation: the inventory changes often, Secrets rarely.
func (c *Checker) checkBootData(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (hash string, err error) {
	c.mu.Lock()
	last, ok := c.bootData[class.Name]
	c.mu.Unlock()
	now := c.deps.Clock.Now()
	if ok && last.uid == class.UID && last.generation == class.Generation && last.err == nil && now.Sub(last.at) < recheckInterval/2 {
		return last.hash, nil
	}
	if err = c.deps.Boot.Check(ctx, c.inventory.View(), class); err == nil {
		hash, err = c.deps.Boot.Hash(ctx, class)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bootData[class.Name] = bootDataCheck{uid: class.UID, generation: class.Generation, at: now, hash: hash, err: err}
	return hash, err
}
