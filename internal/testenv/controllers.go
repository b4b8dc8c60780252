// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Reconcile reconciles an object as it is stored in the API, without an error.
func Reconcile[T client.Object](w *Env, controller reconcile.ObjectReconciler[T], object T) reconcile.Result {
	w.T.Helper()
	result, err := controller.Reconcile(w.T.Context(), Reload(w, object))
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return result
}

// Metric returns the values of a counter or gauge, or how many values a histogram has, by the value
// of its first label; it is empty without labels.
func Metric(t testing.TB, registry prometheus.Gatherer, name string) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	Must(t, err)
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			label := ""
			if labels := metric.GetLabel(); len(labels) > 0 {
				label = labels[0].GetValue()
			}
			out[label] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// Log records what is logged.
type Log struct {
	mu    sync.Mutex
	lines []string
}

// RecordLog returns a context whose logger records.
func RecordLog(ctx context.Context) (context.Context, *Log) {
	l := &Log{}
	return log.IntoContext(ctx, funcr.New(func(_, line string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines = append(l.lines, line)
	}, funcr.Options{})), l
}

// Lines returns the lines that contain a text.
func (l *Log) Lines(text string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}
