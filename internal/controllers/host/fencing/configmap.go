// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fencing applies the ConfigMap in which administrators list the Hosts that they
// powered off. ConfigMap watches it, and deletes the entry of a Host that is online again, so the
// next outage of the Host needs another declaration.
package fencing

import (
	"context"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/karpenter/pkg/events"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// checkInterval is how often the ConfigMap is compared with the inventory.
const checkInterval = 10 * time.Second

// ConfigMap applies the ConfigMap to an Inventory.
type ConfigMap struct {
	// Kube must not be cached: the controller may only read the ConfigMap of this name.
	Kube client.Client
	// Namespace of the ConfigMap.
	Namespace string
	Config    *rest.Config
	Inventory *inventory.Inventory
	Recorder  events.Recorder
	Clock     clock.PassiveClock
}

// Start applies the ConfigMap until the context ends. Until it was read, no Host is fenced.
func (c *ConfigMap) Start(ctx context.Context) error {
	key := client.ObjectKey{Namespace: c.Namespace, Name: declared.FencingConfigMap}
	return watch.ConfigMap(ctx, c.Config, key, checkInterval, func(found *corev1.ConfigMap) { c.Apply(ctx, found) })
}

// Apply applies a version of the ConfigMap; nil for none. Invalid entries are reported and
// ignored.
func (c *ConfigMap) Apply(ctx context.Context, found *corev1.ConfigMap) {
	if found == nil {
		c.Inventory.SetFences(nil)
		return
	}
	fences, errs := declared.ParseFences(found.Data, c.Clock.Now())
	for _, err := range errs {
		c.Recorder.Publish(event.Warning(found, v1alpha1.EventInvalidHostFencing, "Ignoring invalid entry: "+err.Error(), err.Error()))
	}
	c.Inventory.SetFences(fences)
	for name := range fences {
		if c.Inventory.View().HasFenceEnded(name) {
			c.end(ctx, found, name)
		}
	}
}

// end deletes the entry of a Host that was seen online. The inventory ignores it already.
func (c *ConfigMap) end(ctx context.Context, found *corev1.ConfigMap, name observed.HostName) {
	path := "/data/" + name.Key()
	// An administrator may have written another entry in the meantime.
	patch, err := json.Marshal([]map[string]string{{"op": "test", "path": path, "value": found.Data[name.Key()]}, {"op": "remove", "path": path}})
	if err == nil {
		err = c.Kube.Patch(ctx, found.DeepCopy(), client.RawPatch(types.JSONPatchType, patch))
	}
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsInvalid(err): // it changed, which calls Apply
	case err != nil:
		log.FromContext(ctx).Error(err, "deleting the entry of a fenced host failed, retrying", "region", name.Region, "host", name.Host)
	default:
		log.FromContext(ctx).Info("fenced host is online, deleted its entry", "region", name.Region, "host", name.Host, "ConfigMap", client.ObjectKeyFromObject(found))
		c.Recorder.Publish(event.Normal(found, v1alpha1.EventHostFencingEnded, "Host "+name.String()+" is online, so it is not fenced any more, and its entry was deleted", name.String()))
	}
}
