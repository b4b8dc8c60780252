// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of launches. The zero value records nothing.
type Metrics struct {
	phases    *prometheus.HistogramVec
	steps     *prometheus.HistogramVec
	exhausted *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer) Metrics {
	m := Metrics{exhausted: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "karpenter", Subsystem: "proxmox", Name: "address_pool_exhausted_total",
		Help: "VMs that could not be launched because all addresses of a pool were taken.",
	}, []string{"nodeclass", "pool"}), phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "karpenter", Subsystem: "proxmox", Name: "launch_phase_seconds",
		Help:    "Time from the plan of a VM until it reached each phase of its launch.",
		Buckets: prometheus.ExponentialBuckets(0.25, 2, 12),
	}, []string{"phase"}), steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "karpenter", Subsystem: "proxmox", Name: "launch_step_duration_seconds",
		Help:    "How long each step of a launch took, from the plan of the VM to the initialized Node. A Node counts once, when it is initialized.",
		Buckets: []float64{0.5, 1, 2, 5, 10, 20, 30, 45, 60, 90, 120, 180, 300, 600},
	}, []string{"step"})}
	registerer.MustRegister(m.phases, m.steps, m.exhausted)
	return m
}

// AddressPoolExhausted counts a VM that got no address.
func (m Metrics) AddressPoolExhausted(nodeClass, pool string) {
	if m.exhausted != nil {
		m.exhausted.WithLabelValues(nodeClass, pool).Inc()
	}
}

// Launched records the timeline of a launch.
func (m Metrics) Launched(p Progress) {
	if m.phases == nil {
		return
	}
	for phase, at := range p {
		m.phases.WithLabelValues(string(phase)).Observe(at.Seconds())
	}
}

// Initialized records how long the steps of a launch took whose Node is initialized.
func (m Metrics) Initialized(p Progress) {
	if m.steps == nil {
		return
	}
	for _, step := range p.Steps() {
		m.steps.WithLabelValues(string(step.Phase)).Observe(step.Took.Seconds())
	}
}
