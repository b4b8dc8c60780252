// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label code that are not a status code.
const (
	codeNoResponse = "none"
	codeNotFound   = "not_found"
	codeExists     = "exists"
)

// metrics records the calls of one Cluster. The zero value records nothing.
type metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	tasks    *prometheus.HistogramVec
	region   string
}

// newMetrics registers the metrics, which the clients of all Clusters share.
func newMetrics(registerer prometheus.Registerer, region string) (*metrics, error) {
	if registerer == nil {
		return &metrics{}, nil
	}
	requests, err := register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "karpenter", Subsystem: "proxmox", Name: "api_requests_total",
		Help: "Requests to the Proxmox VE API by endpoint, method and status code. The code is \"none\" without a response. " +
			"It is \"not_found\" or \"exists\" if that is the answer to a read or a deletion, which Proxmox sends as an error.",
	}, []string{"region", "endpoint", "method", "code"}))
	if err != nil {
		return nil, err
	}
	duration, err := register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "karpenter", Subsystem: "proxmox", Name: "api_request_duration_seconds",
		Help: "Time until a request to the Proxmox VE API was answered, failover included.",
		// A read takes milliseconds; Proxmox waits 10 s for a lock, and its proxy 30 s for a Host.
		Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30, 60},
	}, []string{"region", "endpoint", "method"}))
	if err != nil {
		return nil, err
	}
	refused, err := register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "karpenter", Subsystem: "proxmox", Name: "api_locked_total",
		Help: "Requests that Proxmox refused because of a lock or because no worker was free. They are retried.",
	}, []string{"region", "endpoint"}))
	if err != nil {
		return nil, err
	}
	tasks, err := register(registerer, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "karpenter", Subsystem: "proxmox", Name: "task_duration_seconds",
		Help:    "How long tasks of Proxmox took, by type (qmclone, qmstart ...) and result (ok, locked, failed).",
		Buckets: prometheus.ExponentialBuckets(0.25, 2, 13),
	}, []string{"region", "type", "result"}))
	if err != nil {
		return nil, err
	}
	return &metrics{requests: requests, duration: duration, refused: refused, tasks: tasks, region: region}, nil
}

func register[C prometheus.Collector](registerer prometheus.Registerer, collector C) (C, error) {
	err := registerer.Register(collector)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	return collector, err
}

// codeLabel returns the label for a response. Proxmox answers 500, 400 or 403 if a VM does not
// exist. That a VM is deleted, or a VMID is taken, is what the caller asked and no failure.
func codeLabel(resp response, err error) string {
	switch {
	case resp.status == 0:
		return codeNoResponse
	case errors.Is(err, ErrNotFound) && (resp.method == http.MethodGet || resp.method == http.MethodDelete):
		return codeNotFound
	case errors.Is(err, ErrExists) && resp.method == http.MethodGet:
		return codeExists
	}
	return strconv.Itoa(resp.status)
}

// observe records a call. The response is empty if there was none.
func (m *metrics) observe(req request, resp response, err error, took time.Duration) {
	if m.requests == nil {
		return
	}
	m.requests.WithLabelValues(m.region, req.endpoint.label(), req.method, codeLabel(resp, err)).Inc()
	m.duration.WithLabelValues(m.region, req.endpoint.label(), req.method).Observe(took.Seconds())
}

// refusal counts responses with the errors ErrLocked and ErrBusy.
func (m *metrics) refusal(req request, err error) {
	if m.refused != nil && (errors.Is(err, ErrLocked) || errors.Is(err, ErrBusy)) {
		m.refused.WithLabelValues(m.region, req.endpoint.label()).Inc()
	}
}

// taskEnded records a task that this client started.
func (m *metrics) taskEnded(task UPID, status TaskStatus, took time.Duration) {
	if m.tasks == nil {
		return
	}
	result := "ok"
	switch err := status.Err(); {
	case errors.Is(err, ErrLocked), errors.Is(err, ErrBusy):
		result = "locked"
	case err != nil:
		result = "failed"
	}
	m.tasks.WithLabelValues(m.region, task.Kind(), result).Observe(took.Seconds())
}
