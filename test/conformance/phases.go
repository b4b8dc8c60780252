// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/karpenter/test/suites/performance"
)

// readPhases reads the reports that the performance suite writes for each phase of a spec.
func readPhases(dir string) ([]performance.PerformanceReport, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_performance_report.json"))
	if err != nil {
		return nil, fmt.Errorf("listing performance reports: %w", err)
	}
	var phases []performance.PerformanceReport
	for _, file := range files {
		content, err := os.ReadFile(file) //nolint:gosec // the path is ours
		if err != nil {
			return nil, fmt.Errorf("reading performance report: %w", err)
		}
		var phase performance.PerformanceReport
		if err := json.Unmarshal(content, &phase); err != nil {
			return nil, fmt.Errorf("reading performance report %s: %w", file, err)
		}
		phases = append(phases, phase)
	}
	slices.SortFunc(phases, func(a, b performance.PerformanceReport) int { return a.Timestamp.Compare(b.Timestamp) })
	return phases, nil
}

// phaseTable returns a Markdown table of the performance suite's figures, or nothing. A spec that did
// not pass has a row after its last phase.
func (r *runner) phaseTable() string {
	var rows strings.Builder
	for _, spec := range r.specs {
		result := r.results[spec.id()]
		for _, p := range result.Phases {
			fmt.Fprintf(&rows, "| %s | %s | %s | %s | %d | %.0f %% | %.0f %% | %.0f MB | %.0f MB | %.2f cores |\n", spec.file(), spec.provider(), p.TestType, p.TotalTime.Round(time.Second),
				p.TotalNodes, 100*p.TotalReservedCPUUtil, 100*p.TotalReservedMemoryUtil, p.KarpenterP95HeapMB, p.KarpenterMaxMemoryMB, p.KarpenterAvgCPUCores)
		}
		if spec.Suite == performanceSuite && !result.passed() {
			fmt.Fprintf(&rows, "| %s | %s | %s | | | | | | | |\n", spec.file(), spec.provider(), outcomeFailed)
		}
	}
	if rows.Len() == 0 {
		return ""
	}
	return "\n| file | provider | phase | time | nodes | CPU reserved | memory reserved | heap (95 %) | RSS (max) | CPU (average) |\n|---|---|---|---|---|---|---|---|---|---|\n" + rows.String()
}
