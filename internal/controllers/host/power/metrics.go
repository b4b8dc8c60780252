// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
)

// The metrics are computed when they are collected, so a removed Host leaves no stale series.
var (
	wattsDesc    = desc("host_power_watts", "Estimated power of a host that takes part in power management, by its settings wattsidle and wattsfull and its CPU load.")
	possibleDesc = desc("host_sleep_possible", "1 if a host could be shut down to save energy, 0 if something keeps it awake.")
	savingsDesc  = desc("host_sleep_savings_watts", "Power that would be saved if a host that could be shut down were off, 0 if something keeps it awake.")
	asleepDesc   = desc("host_asleep", "1 if a host is off to save energy, 0 if not.")
	savedDesc    = desc("host_sleep_saved_watts", "Idle power of a host that is off to save energy, 0 if it is on.")
	blockedDesc  = desc("host_sleep_blocked", "1 for each reason that keeps a host awake.", "reason")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("karpenter", "proxmox", name), help, append([]string{"region", "host"}, labels...), nil)
}

// Describe implements prometheus.Collector.
func (c *Controller) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{wattsDesc, possibleDesc, savingsDesc, asleepDesc, savedDesc, blockedDesc} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Controller) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	view := c.deps.Inventory.View()
	for name, report := range *c.reports.Load() {
		possible, savings, asleep := 0.0, 0.0, 0.0
		if report.Action == power.Sleep {
			possible, savings = 1, report.watts
		}
		if host, _ := view.Host(name.Region, name.Host); isAsleep(host.Sleep) {
			asleep = 1
		}
		gauge(wattsDesc, report.watts, name.Region, name.Host)
		gauge(possibleDesc, possible, name.Region, name.Host)
		gauge(savingsDesc, savings, name.Region, name.Host)
		gauge(savedDesc, report.savedWatts, name.Region, name.Host)
		gauge(asleepDesc, asleep, name.Region, name.Host)
		if report.Action == power.Wake {
			continue
		}
		for _, reason := range report.Reasons {
			gauge(blockedDesc, 1, name.Region, name.Host, string(reason.Type))
		}
	}
}

// Values of the labels of the counter of actions.
const (
	actionShutdown = "Shutdown"
	actionWake     = "Wake"
	resultSuccess  = "Success"
	resultFailure  = "Failure"
)

func newActionMetric() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "karpenter", Subsystem: "proxmox", Name: "host_power_actions_total",
		Help: "Hosts that were shut down to save energy, and hosts that came online after they were woken, or did not.",
	}, []string{"region", "host", "action", "result"})
}

// isAsleep reports whether a Host is off to save energy, about to be, or boots again.
func isAsleep(state declared.SleepState) bool {
	return state == declared.ShuttingDown || state == declared.Asleep || state == declared.Waking
}
