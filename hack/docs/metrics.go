// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

// metricsPage lists what the provider registers.
func metricsPage() (string, error) {
	register := &described{}
	if err := operator.DescribeMetrics(register); err != nil {
		return "", err
	}
	if register.err != nil {
		return "", register.err
	}
	slices.Sort(register.rows)
	var b strings.Builder
	b.WriteString("# Metrics\n\n<!-- Written by \"make generate\" from what the code registers. -->\n\n" +
		"Of the Proxmox provider, on the metrics port. Beside these there are all of\n" +
		"[Karpenter's own metrics](https://karpenter.sh/docs/reference/metrics/), and those of conditions\n" +
		"(`operator_status_condition_*`) for ProxmoxNodeClass and the templates.\n\n" +
		"| metric | labels | meaning |\n|---|---|---|\n")
	for _, row := range slices.Compact(register.rows) {
		b.WriteString(row)
	}
	return b.String(), nil
}

// described is a registerer that only writes down.
type described struct {
	rows []string
	err  error
}

// description is how a Desc prints itself; it has no other way to be read.
var description = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "((?:[^"\\]|\\.)*)", constLabels: \{.*\}, variableLabels: \{(.*)\}\}$`)

// Register implements prometheus.Registerer.
func (d *described) Register(collector prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		collector.Describe(descs)
	}()
	for desc := range descs {
		parts := description.FindStringSubmatch(desc.String())
		if parts == nil {
			d.err = errors.Join(d.err, fmt.Errorf("reading the description %s", desc))
			continue
		}
		labels := "–"
		if parts[3] != "" {
			labels = "`" + strings.ReplaceAll(parts[3], ",", "`, `") + "`"
		}
		d.rows = append(d.rows, fmt.Sprintf("| `%s` | %s | %s |\n", parts[1], labels, strings.ReplaceAll(parts[2], `\"`, `"`)))
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (d *described) MustRegister(collectors ...prometheus.Collector) {
	for _, collector := range collectors {
		_ = d.Register(collector)
	}
}

// Unregister implements prometheus.Registerer.
func (d *described) Unregister(prometheus.Collector) bool { return false }
