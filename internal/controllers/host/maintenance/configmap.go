// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
)

// ConfigMapName is the name of the ConfigMap that lists Hosts in maintenance. See
// inventory.ParseMaintenance for its format.
const ConfigMapName = "karpenter-proxmox-maintenance"

// ConfigMap applies a ConfigMap to an Inventory. It has its own watch, because the
// controller may only read the ConfigMap of this name.
type ConfigMap struct {
	// Namespace of the ConfigMap.
	Namespace string
	Config    *rest.Config
	Inventory *inventory.Inventory
	Recorder  events.Recorder
}

// NeedLeaderElection returns false: every replica has the same view of the Hosts.
func (c *ConfigMap) NeedLeaderElection() bool { return false }

// Read applies the ConfigMap once. Call it before controllers start: to them, a Host whose
// maintenance was not read has returned to service. If the ConfigMap cannot be read, Read
// fails, and the maintenance is unknown until Start has read it. An absent ConfigMap is
// empty, and so is one that the controller may not read: nobody can use it then.
func (c *ConfigMap) Read(ctx context.Context, kube client.Reader) error {
	found := &corev1.ConfigMap{}
	err := kube.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: ConfigMapName}, found)
	if apierrors.IsNotFound(err) {
		c.apply(ctx, nil)
		return nil
	}
	if err != nil {
		if !apierrors.IsForbidden(err) {
			c.Inventory.SetMaintenanceUnknown()
		}
		return fmt.Errorf("reading ConfigMap %s/%s: %w", c.Namespace, ConfigMapName, err)
	}
	c.apply(ctx, found)
	return nil
}

// Start applies every change of the ConfigMap until the context ends. If the ConfigMap
// cannot be read, the last one remains in effect and the watch is retried.
func (c *ConfigMap) Start(ctx context.Context) error {
	key := client.ObjectKey{Namespace: c.Namespace, Name: ConfigMapName}
	return watch.ConfigMap(ctx, c.Config, key, 0, func(found *corev1.ConfigMap) { c.apply(ctx, found) })
}

// apply sets the Hosts in maintenance; nil for none. Invalid entries are reported and
// ignored.
func (c *ConfigMap) apply(ctx context.Context, found *corev1.ConfigMap) {
	if found == nil {
		c.Inventory.SetMaintenance(nil)
		return
	}
	hosts, errs := declared.ParseMaintenance(found.Data)
	errs = append(errs, c.checkHosts(hosts)...)
	for _, err := range errs {
		log.FromContext(ctx).Error(err, "ignoring invalid entry of the host maintenance", "ConfigMap", client.ObjectKeyFromObject(found))
		c.Recorder.Publish(event.Warning(found, v1alpha1.EventInvalidHostMaintenance, "Ignoring invalid entry: "+err.Error(), err.Error()))
	}
	c.Inventory.SetMaintenance(hosts)
}

// checkHosts returns an error for each Host that does not exist. Hosts of a Cluster that
// was not polled yet are accepted.
func (c *ConfigMap) checkHosts(hosts declared.Maintenance) []error {
	var errs []error
	regions, view := c.Inventory.Regions(), c.Inventory.View()
	for name := range hosts {
		snapshot := view.Snapshots[name.Region]
		switch {
		case !slices.Contains(regions, name.Region):
			errs = append(errs, fmt.Errorf("key %q: region %q is not configured, want one of %q", name.Key(), name.Region, regions))
		case snapshot != nil && snapshot.Hosts[name.Host].Name == "":
			errs = append(errs, fmt.Errorf("key %q: region %s has no host %q, want one of %q", name.Key(), name.Region, name.Host, slices.Sorted(maps.Keys(snapshot.Hosts))))
		}
	}
	return errs
}
