// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
)

// AddressPoolState reports whether a class has AddressPools, and which of them is
// exhausted. If it has any, the inventory reads the addresses of guests from now on, so
// a launch does not wait for that.
func AddressPoolState(inv *inventory.Inventory, class *v1alpha1.ProxmoxNodeClass) (hasPools bool, exhausted string) {
	view := inv.View()
	for _, layout := range layouts(view, class) {
		if len(layout.Pools()) == 0 {
			continue
		}
		hasPools = true
		inv.WatchAddresses()
		if exhausted := layout.Exhausted(view); exhausted != nil {
			return true, exhausted.Error()
		}
	}
	return hasPools, ""
}

// AddressPoolConflict describes an AddressPool of another class that is on the same
// network as one of this class with an overlapping, different subnet; empty if there is
// none.
func AddressPoolConflict(view inventory.View, class *v1alpha1.ProxmoxNodeClass, others []v1alpha1.ProxmoxNodeClass) string {
	own := layouts(view, class)
	for i := range others {
		if others[i].Name == class.Name {
			continue
		}
		for _, other := range layouts(view, &others[i]) {
			for _, layout := range own {
				if c, found := layout.Conflicts(other.Layout); found && layout.region == other.region {
					return fmt.Sprintf("%s (%s) and %s of ProxmoxNodeClass %q (%s) are different subnets on one network (%s in region %s): "+
						"use the same cidr and divide it with ranges, or subnets that do not overlap",
						c.Own.From, c.Own.Pool.Subnet(), c.Other.From, others[i].Name, c.Other.Pool.Subnet(), c.Network, layout.region)
				}
			}
		}
	}
	return ""
}

// regionLayout is the network layout of a class's VMs on a Host of a region.
type regionLayout struct {
	network.Layout
	region string
}

// layouts returns the network layout of a class's VMs on each of its Hosts.
func layouts(view inventory.View, class *v1alpha1.ProxmoxNodeClass) []regionLayout {
	var out []regionLayout
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil {
			continue
		}
		if template, ok := view.Guest(zone.Region, zone.VMID); ok && template.Config != nil {
			if layout, err := network.NewLayout(class, *template.Config); err == nil {
				out = append(out, regionLayout{layout, zone.Region})
			}
		}
	}
	return out
}

// poolCollector computes size and use of all AddressPools at each scrape, so no series
// outlives its class.
type poolCollector struct {
	kube      client.Reader
	inventory *inventory.Inventory
	size      *prometheus.Desc
	used      *prometheus.Desc
}

// RegisterAddressPoolMetrics registers the metrics of AddressPools.
func RegisterAddressPoolMetrics(registerer prometheus.Registerer, kube client.Reader, inv *inventory.Inventory) error {
	labels := []string{"nodeclass", "interface", "pool"}
	return registerer.Register(&poolCollector{
		kube: kube, inventory: inv,
		size: prometheus.NewDesc("karpenter_proxmox_address_pool_size", "Addresses of a pool of a NodeClass.", labels, nil),
		used: prometheus.NewDesc("karpenter_proxmox_address_pool_used", "Addresses of a pool of a NodeClass that are in use or reserved.", labels, nil),
	})
}

// Describe sends the descriptions of the metrics.
func (c *poolCollector) Describe(out chan<- *prometheus.Desc) { out <- c.size; out <- c.used }

// Collect sends the metrics.
func (c *poolCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if err := c.kube.List(ctx, classes); err != nil {
		return // the next scrape retries
	}
	view := c.inventory.View()
	for i := range classes.Items {
		for key, source := range pools(view, &classes.Items[i]) {
			labels := []string{classes.Items[i].Name, key.slot, key.subnet}
			out <- prometheus.MustNewConstMetric(c.size, prometheus.GaugeValue, source.Pool.Size(), labels...)
			out <- prometheus.MustNewConstMetric(c.used, prometheus.GaugeValue, float64(source.Pool.Used(view.Addresses().All())), labels...)
		}
	}
}

type poolKey struct{ slot, subnet string }

// pools returns each AddressPool of a class once, however many Hosts use it.
func pools(view inventory.View, class *v1alpha1.ProxmoxNodeClass) map[poolKey]network.Source {
	out := map[poolKey]network.Source{}
	for _, layout := range layouts(view, class) {
		for _, i := range layout.Interfaces {
			for _, source := range []network.Source{i.V4, i.V6} {
				if source.Pool != nil {
					out[poolKey{i.Slot, source.Pool.Subnet().String()}] = source
				}
			}
		}
	}
	return out
}
