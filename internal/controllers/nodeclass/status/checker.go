// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"sync"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/readiness"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Checker looks at NodeClasses and writes nothing: the Controller keeps what it finds,
// and people can ask it before anything is installed.
type Checker struct {
	reader    client.Reader
	inventory *inventory.Inventory
	deps      Deps

	mu       sync.Mutex
	rendered map[string]rendering // by name of the class
}

// Deps are the dependencies of a Checker.
type Deps struct {
	Inventory  *inventory.Inventory
	Types      *instancetype.Provider
	Roots      instance.Roots
	Boot       boot.Source
	Health     *launch.Health
	CloneTimes *launch.CloneTimes
	Clock      clock.PassiveClock
}

// NewChecker returns a Checker.
func NewChecker(reader client.Reader, deps Deps) *Checker {
	return &Checker{reader: reader, inventory: deps.Inventory, deps: deps, rendered: map[string]rendering{}}
}

// Check fills in the status of a NodeClass.
func (c *Checker) Check(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	view := c.inventory.View()
	checked := class.StatusConditions().Root().ObservedGeneration
	changed := checked != 0 && checked != class.Generation
	if changed {
		c.deps.Health.Reset(class.Name)
		c.deps.Types.ResetFailures(class.Name)
		_ = class.StatusConditions().Clear(v1alpha1.ConditionLaunchesHealthy)
	}
	source, err := c.templateSource(ctx, class.Spec.InstanceTemplateRef)
	if err != nil {
		return err
	}
	zones, unread := c.zones(class, view, source)
	if changed {
		c.doubtAll(zones)
	}
	c.clusters(class, view)
	found := look(zones)
	found.tell(class, unread)
	c.bootData(ctx, class)
	c.launches(class, zones)
	if err := c.addresses(ctx, class); err != nil {
		return err
	}
	c.room(class)
	readiness.SetCause(class)
	for region, facts := range found.doubts {
		c.inventory.Invalidate(region, facts...)
	}
	return nil
}

// regions that a class may use.
func (c *Checker) regions(class *v1alpha1.ProxmoxNodeClass) []string {
	if class.Spec.Region != "" {
		return []string{class.Spec.Region}
	}
	return c.inventory.Regions()
}
