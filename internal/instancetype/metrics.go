// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// offeringMetrics exports the offerings by Host and by instance type: a series for each
// combination would be thousands. They are collected on demand, so offerings that no
// longer exist have no series.
type offeringMetrics struct {
	provider *Provider
	// perHost counts instance types, perType Hosts.
	perHost *prometheus.Desc
	perType *prometheus.Desc
	price   *prometheus.Desc
}

func newOfferingMetrics(p *Provider) *offeringMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("karpenter", "proxmox", name), help, append([]string{"nodeclass", "nodepool"}, labels...), nil)
	}
	return &offeringMetrics{
		provider: p,
		perHost:  desc("offerings_available", "Number of instance types that can be launched on a host. The nodepool is empty where it is the same for all.", "region", "host"),
		perType:  desc("instance_type_available_hosts", "Number of hosts on which an instance type can be launched. The nodepool is empty where it is the same for all.", "instance_type"),
		price:    desc("instance_type_price", "Price of an instance type on its cheapest host, without currency.", "instance_type"),
	}
}

// Describe implements prometheus.Collector.
func (m *offeringMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- m.perHost
	descs <- m.perType
	descs <- m.price
}

// Collect implements prometheus.Collector.
func (m *offeringMetrics) Collect(out chan<- prometheus.Metric) {
	m.provider.mu.RLock()
	lists := maps.Clone(m.provider.lists)
	m.provider.mu.RUnlock()
	for key, l := range lists {
		gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, append([]string{key.nodeClass, key.nodePool}, labels...)...)
		}
		types := make([]int, len(l.params.zones)) // by zone
		for n, it := range l.types {
			hosts, price := 0, math.Inf(1)
			for z, zone := range l.params.zones {
				offering := it.Offerings[z]
				if l.variants[n].isFor(zone) {
					price = min(price, offering.Price)
				}
				if offering.Available {
					hosts++
					types[z]++
				}
			}
			if !math.IsInf(price, 1) {
				gauge(m.perType, float64(hosts), it.Name)
				gauge(m.price, price, it.Name)
			}
		}
		for z, zone := range l.params.zones {
			gauge(m.perHost, float64(types[z]), zone.Region, zone.Host)
		}
	}
}
