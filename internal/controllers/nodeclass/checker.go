// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package nodeclass

import (
	"context"
	"sync"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/lifecycle"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/launch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
)

// Checker checks NodeClasses without writing to the API server. The Controller stores
// its results; the kubectl plugin runs it before anything is installed.
type Checker struct {
	reader    client.Reader
	inventory *inventory.Inventory
	deps      Deps

	// bootData are the hashes of valid boot data by name of the class.
	bootData *due.Cache[string, string]

	mu sync.Mutex
	// lacking are the privileges that were missing at the last check, by name of the class.
	lacking map[string][]lackedPrivilege
}

// Deps are the dependencies of a Checker.
type Deps struct {
	Inventory   *inventory.Inventory
	Types       *instancetype.Provider
	RootClients instance.RootClients
	Boot        boot.Source
	Health      *launch.Health
	Clock       clock.PassiveClock
}

// NewChecker returns a Checker. The reader returns the template objects of NodeClasses.
func NewChecker(reader client.Reader, deps Deps) *Checker {
	return &Checker{
		reader: reader, inventory: deps.Inventory, deps: deps, lacking: map[string][]lackedPrivilege{},
		bootData: due.New[string, string](deps.Clock, func(string) due.Policy { return due.Policy{Every: watch.Again} }),
	}
}

// Check sets the status of a NodeClass. It returns an error if an object cannot be read.
func (c *Checker) Check(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) error {
	view := c.inventory.View()
	checked := class.StatusConditions().Root().ObservedGeneration
	changed := checked != 0 && checked != class.Generation
	if changed {
		c.resetFailures(class)
	}
	source, err := c.readTemplateSource(ctx, class.Spec.InstanceTemplateRef)
	if err != nil {
		return err
	}
	zones, unread := c.newZones(class, view, source)
	if changed {
		c.invalidateFacts(zones)
	}
	c.setClustersReachable(class, view)
	e := evaluate(zones)
	e.setConditions(class, unread, c.deps.Clock.Now())
	if c.setKubeletConfigurationValid(ctx, class) {
		c.setBootDataReady(ctx, class)
	} else {
		class.StatusConditions().SetUnknownWithReason(v1alpha1.ConditionInstanceMetadataOptionsReady, v1alpha1.ReasonNotChecked,
			"not checked until condition "+v1alpha1.ConditionKubeletConfigurationValid+" is true")
	}
	c.endBackoffAfterGrant(class, view, e.lacking)
	c.setLaunchesHealthy(class, zones)
	if err := c.setAddressConditions(ctx, class); err != nil {
		return err
	}
	c.setCapacityAvailable(class)
	c.setReserveAvailable(class, unread)
	lifecycle.SetCause(class)
	for region, facts := range e.staleFacts {
		c.inventory.Invalidate(region, facts...)
	}
	return nil
}

// resetFailures discards the failed launches of a class and ends their backoff.
func (c *Checker) resetFailures(class *v1alpha1.ProxmoxNodeClass) {
	c.deps.Health.Reset(class.Name)
	c.deps.Types.ResetFailures(class.Name)
	_ = class.StatusConditions().Clear(v1alpha1.ConditionLaunchesHealthy)
}

// regions returns the regions that a NodeClass may use.
func (c *Checker) regions(class *v1alpha1.ProxmoxNodeClass) []string {
	if class.Spec.Region != "" {
		return []string{class.Spec.Region}
	}
	return c.inventory.Regions()
}
