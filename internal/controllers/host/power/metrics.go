// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
)

// The metrics are computed when they are collected, so a removed Host leaves no stale series.
var (
	wattsDesc    = desc("host_power_watts", "Estimated power of a host that takes part in power management, by its settings wattsidle and wattsfull and its CPU load.")
	possibleDesc = desc("host_sleep_possible", "1 if a host could be shut down to save energy, 0 if something keeps it awake.")
	savingsDesc  = desc("host_sleep_savings_watts", "Power that would be saved if a host that could be shut down were off, 0 if something keeps it awake.")
	blockedDesc  = desc("host_sleep_blocked", "1 for each reason that keeps a host awake.", "reason")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("karpenter", "proxmox", name), help, append([]string{"region", "host"}, labels...), nil)
}

// Describe implements prometheus.Collector.
func (c *Controller) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{wattsDesc, possibleDesc, savingsDesc, blockedDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Controller) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, report := range c.reports {
		possible, savings := 0.0, 0.0
		if report.Action == power.Sleep {
			possible, savings = 1, report.watts
		}
		gauge(wattsDesc, report.watts, name.Region, name.Host)
		gauge(possibleDesc, possible, name.Region, name.Host)
		gauge(savingsDesc, savings, name.Region, name.Host)
		for _, reason := range report.Reasons {
			gauge(blockedDesc, 1, name.Region, name.Host, string(reason.Type))
		}
	}
}
