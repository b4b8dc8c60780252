// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const (
	metricsNamespace = "karpenter"
	metricsSubsystem = "proxmox"
)

// metrics are the metrics of the inventory. Those about a View are computed when they are
// collected, so a removed Host leaves no stale series.
type metrics struct {
	clock          clock.PassiveClock
	regions        []string
	view           func() View
	duration       *prometheus.HistogramVec
	failures       *prometheus.CounterVec
	settingsErrors prometheus.Counter

	age    *prometheus.Desc
	quorum *prometheus.Desc
	usable *prometheus.Desc
	online *prometheus.Desc
	cpus   *prometheus.Desc
	memory *prometheus.Desc
	watts  *prometheus.Desc
	cost   *prometheus.Desc
}

func newMetrics(clk clock.PassiveClock, registerer prometheus.Registerer, regions []string, view func() View) (*metrics, error) {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricsNamespace, metricsSubsystem, name), help, labels, nil)
	}
	m := &metrics{
		clock: clk, regions: regions, view: view,
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "inventory_poll_duration_seconds",
			Help:    "Duration of a poll of a Proxmox cluster's resources.",
			Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
		}, []string{"region"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "inventory_poll_errors_total",
			Help: "Failed polls of a Proxmox cluster's resources.",
		}, []string{"region"}),
		settingsErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: metricsNamespace, Subsystem: metricsSubsystem, Name: "settings_reload_errors_total",
			Help: "Changes of the host settings file that were rejected. The last good settings remain in effect.",
		}),
		age:    desc("inventory_age_seconds", "Age of the last good snapshot of a Proxmox cluster.", "region"),
		quorum: desc("cluster_quorate", "0 while a Proxmox cluster reports that it has no quorum, 1 otherwise.", "region"),
		usable: desc("host_usable", "1 if a host accepts new VMs, 0 if not.", "region", "host"),
		online: desc("host_online", "1 if Proxmox reports a host as online, 0 if not, as of the last good snapshot.", "region", "host"),
		cpus: desc("host_cpus",
			"CPUs of a host: allocatable by settings, allocated to guests, reserved for VMs being launched, free.", "region", "host", "state"),
		memory: desc("host_memory_bytes",
			"Memory of a host: allocatable by settings, allocated to guests, reserved for VMs being launched, free.", "region", "host", "state"),
		watts: desc("nodepool_power_watts",
			"Estimated power of the VMs of a NodePool: the guests of a host share its power in proportion to their CPUs.", "nodepool"),
		cost: desc("nodepool_energy_cost_per_hour",
			"Estimated cost of the energy that the VMs of a NodePool use in an hour, by the host setting energyprice.", "nodepool"),
	}
	for _, region := range regions {
		m.failures.WithLabelValues(region) // alerts need a series that starts at zero
	}
	if registerer == nil {
		return m, nil
	}
	return m, errors.Join(registerer.Register(m.duration), registerer.Register(m.failures), registerer.Register(m.settingsErrors), registerer.Register(m))
}

// observePoll records one poll.
func (m *metrics) observePoll(region string, took time.Duration, err error) {
	m.duration.WithLabelValues(region).Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(region).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.age, m.quorum, m.usable, m.online, m.cpus, m.memory, m.watts, m.cost} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	view := m.view()
	for region, snapshot := range view.Snapshots {
		gauge(m.age, m.clock.Since(snapshot.Taken).Seconds(), region)
	}
	for _, region := range m.regions {
		gauge(m.quorum, asGauge(!errors.Is(view.Failures[region], proxmox.ErrNoQuorum)), region)
	}
	for _, host := range view.Hosts() {
		gauge(m.usable, asGauge(host.IsAvailable(Launch)), host.Region, host.Name)
		gauge(m.online, asGauge(!host.Has(Off)), host.Region, host.Name)
		for _, state := range []struct {
			name   string
			amount observed.Amount
		}{
			{"allocatable", host.Allocatable}, {"allocated", host.Allocated}, {"reserved", host.Reserved}, {"free", host.Free},
		} {
			gauge(m.cpus, float64(state.amount.CPUs), host.Region, host.Name, state.name)
			gauge(m.memory, float64(state.amount.MemoryBytes), host.Region, host.Name, state.name)
		}
	}
	for nodePool, energy := range view.NodePoolEnergy() {
		gauge(m.watts, energy.Watts, nodePool)
		gauge(m.cost, energy.CostPerHour, nodePool)
	}
}

// asGauge returns 1 for true and 0 for false.
func asGauge(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
