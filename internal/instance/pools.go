// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

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

// poolMetrics tells size and use of the address pools of all NodeClasses. It looks when
// it is asked, so that nothing outlives a class.
type poolMetrics struct {
	kube      client.Reader
	inventory *inventory.Inventory
	size      *prometheus.Desc
	used      *prometheus.Desc
}

// RegisterAddressPoolMetrics adds the metrics of address pools.
func RegisterAddressPoolMetrics(registerer prometheus.Registerer, kube client.Reader, inv *inventory.Inventory) error {
	labels := []string{"nodeclass", "interface", "pool"}
	return registerer.Register(&poolMetrics{
		kube: kube, inventory: inv,
		size: prometheus.NewDesc("karpenter_proxmox_address_pool_size", "Addresses that a pool of a NodeClass may give.", labels, nil),
		used: prometheus.NewDesc("karpenter_proxmox_address_pool_used", "Addresses of a pool of a NodeClass that somebody has or was promised.", labels, nil),
	})
}

// Describe names the metrics.
func (m *poolMetrics) Describe(out chan<- *prometheus.Desc) { out <- m.size; out <- m.used }

// Collect computes them.
func (m *poolMetrics) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if err := m.kube.List(ctx, classes); err != nil {
		return // the next scrape will tell
	}
	view := m.inventory.View()
	for i := range classes.Items {
		for key, source := range poolsOf(view, &classes.Items[i]) {
			labels := []string{classes.Items[i].Name, key.slot, key.subnet}
			out <- prometheus.MustNewConstMetric(m.size, prometheus.GaugeValue, source.Pool.Size(), labels...)
			out <- prometheus.MustNewConstMetric(m.used, prometheus.GaugeValue, float64(source.Pool.Used(view.Addresses().All())), labels...)
		}
	}
}

type poolKey struct{ slot, subnet string }

// poolsOf are a class's pools, each once, however many Hosts have Templates with it.
func poolsOf(view inventory.View, class *v1alpha1.ProxmoxNodeClass) map[poolKey]network.Source {
	out := map[poolKey]network.Source{}
	for _, layout := range layoutsOf(view, class) {
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

// regional is what the VMs of a class get on a Host of a region.
type regional struct {
	network.Layout
	region string
}

// layoutsOf are what the VMs of a class get on each of its Hosts.
func layoutsOf(view inventory.View, class *v1alpha1.ProxmoxNodeClass) []regional {
	var out []regional
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil {
			continue
		}
		if template, ok := view.Guest(zone.Region, zone.VMID); ok && template.Config != nil {
			if layout, err := network.NewLayout(class, *template.Config); err == nil {
				out = append(out, regional{layout, zone.Region})
			}
		}
	}
	return out
}

// AddressPoolState tells whether a class has address pools, and which of them has nothing left.
// From the first one on, it is watched who has which address, so that a launch need not
// wait for that.
func (p *Provider) AddressPoolState(class *v1alpha1.ProxmoxNodeClass) (pooled bool, empty string) {
	view := p.Inventory.View()
	for _, layout := range layoutsOf(view, class) {
		if len(layout.Pools()) == 0 {
			continue
		}
		pooled = true
		p.Inventory.WatchAddresses()
		if exhausted := layout.Exhausted(view); exhausted != nil {
			return true, exhausted.Error()
		}
	}
	return pooled, ""
}

// AddressPoolConflict says which pool of another class lies on the same network as one of
// this class's and takes it for another subnet; empty when there is none.
func (p *Provider) AddressPoolConflict(class *v1alpha1.ProxmoxNodeClass, others []v1alpha1.ProxmoxNodeClass) string {
	view := p.Inventory.View()
	mine := layoutsOf(view, class)
	for i := range others {
		if others[i].Name == class.Name {
			continue
		}
		for _, theirs := range layoutsOf(view, &others[i]) {
			for _, layout := range mine {
				if d, found := layout.Conflicts(theirs.Layout); found && layout.region == theirs.region {
					return fmt.Sprintf("%s (%s) and %s of ProxmoxNodeClass %q (%s) are different subnets on one network (%s in region %s): "+
						"use the same cidr and divide it with ranges, or subnets that do not overlap",
						d.Own.From, d.Own.Pool.Subnet(), d.Other.From, others[i].Name, d.Other.Pool.Subnet(), d.Network, layout.region)
				}
			}
		}
	}
	return ""
}
