// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// offeringMetrics exports the offerings. They are collected on demand, so offerings that
// no longer exist have no series.
type offeringMetrics struct {
	provider  *Provider
	available *prometheus.Desc
	price     *prometheus.Desc
}

func newOfferingMetrics(p *Provider) *offeringMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName("karpenter", "proxmox", name), help,
			[]string{"nodeclass", "nodepool", "instance_type", "region", "host"}, nil)
	}
	return &offeringMetrics{
		provider:  p,
		available: desc("offering_available", "1 when an instance type can be launched on a host, 0 when not. The nodepool is empty where the offering is the same for all."),
		price:     desc("offering_price", "Price of an instance type on a host, without currency."),
	}
}

// Describe implements prometheus.Collector.
func (m *offeringMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- m.available
	descs <- m.price
}

// Collect implements prometheus.Collector.
func (m *offeringMetrics) Collect(out chan<- prometheus.Metric) {
	m.provider.mu.RLock()
	lists := maps.Clone(m.provider.lists)
	m.provider.mu.RUnlock()
	for key, l := range lists {
		for _, it := range l.types {
			for z, offering := range it.Offerings {
				value := 0.0
				if offering.Available {
					value = 1
				}
				labels := []string{key.nodeClass, key.nodePool, it.Name, l.params.zones[z].Region, l.params.zones[z].Host}
				out <- prometheus.MustNewConstMetric(m.available, prometheus.GaugeValue, value, labels...)
				out <- prometheus.MustNewConstMetric(m.price, prometheus.GaugeValue, offering.Price, labels...)
			}
		}
	}
}
