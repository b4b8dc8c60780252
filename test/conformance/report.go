// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/karpenter/test/suites/performance"
)

// Outcomes of a spec.
const (
	outcomePassed  = "passed"
	outcomeFailed  = "FAILED"
	outcomeAllowed = "allowed" // it did not pass, and specs.yaml has the reason
	outcomeStale   = "STALE"   // it passed, but specs.yaml allows it to fail
	outcomeNotRun  = "not run"
)

func (r *runner) outcome(result Result) string {
	switch reason := r.lists.reason(result.Spec); {
	case result.passed() && reason == "":
		return outcomePassed
	case result.passed():
		return outcomeStale
	case reason != "":
		return outcomeAllowed
	}
	return outcomeFailed
}

// report prints and writes the table. It returns an error unless all specs have the expected
// outcome.
func (r *runner) report(out io.Writer) error {
	table, bad := r.table()
	fmt.Fprint(out, "\n"+table)
	if err := os.WriteFile(filepath.Join(r.dir, "results.md"), []byte(table), 0o600); err != nil {
		return fmt.Errorf("writing table: %w", err)
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d specs do not have the expected outcome", bad, len(r.specs))
	}
	return nil
}

// table returns a Markdown table with a row per file, a list of the specs that did not pass,
// and the number of specs without the expected outcome.
func (r *runner) table() (text string, bad int) {
	type row struct {
		specs, passed, allowed, bad int
		took                        time.Duration
	}
	rows, files, total := map[string]*row{}, []string{}, &row{}
	var notes strings.Builder
	for _, spec := range r.specs {
		file := spec.file()
		if rows[file] == nil {
			rows[file] = &row{}
			files = append(files, file)
		}
		outcome := outcomeNotRun
		result, ok := r.results[spec.id()]
		if ok {
			outcome = r.outcome(result)
		}
		for _, row := range []*row{rows[file], total} {
			row.specs++
			row.took += result.Took
			switch outcome {
			case outcomePassed:
				row.passed++
			case outcomeAllowed:
				row.allowed++
			default:
				row.bad++
			}
		}
		if note := r.note(outcome, result); note != "" {
			fmt.Fprintf(&notes, "- %s: %s\n", spec, note)
		}
	}
	var out strings.Builder
	out.WriteString("| file | specs | passed | allowed | failed or not run | time |\n|---|---|---|---|---|---|\n")
	write := func(name string, r *row) {
		fmt.Fprintf(&out, "| %s | %d | %d | %d | %d | %s |\n", name, r.specs, r.passed, r.allowed, r.bad, r.took.Round(time.Second))
	}
	for _, file := range files {
		write(file, rows[file])
	}
	write("all", total)
	out.WriteString(r.phaseTable())
	if notes.Len() > 0 {
		out.WriteString("\n" + notes.String())
	}
	return out.String(), total.bad
}

// note describes an outcome that is worth a line.
func (r *runner) note(outcome string, result Result) string {
	switch {
	case outcome == outcomeAllowed:
		return "allowed: " + r.lists.reason(result.Spec)
	case outcome == outcomeStale:
		return "STALE: it passed; remove it from the allowed specs in specs.yaml"
	case outcome == outcomeFailed:
		return "FAILED: " + strings.Join(strings.Fields(shorten(result.Problem)), " ")
	case outcome == outcomePassed && result.Attempt > 1:
		return "passed when it was repeated alone"
	}
	return ""
}

// readPhases reads the reports that the performance suite writes for each phase of a spec.
func readPhases(dir string) ([]performance.PerformanceReport, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_performance_report.json"))
	if err != nil {
		return nil, fmt.Errorf("listing performance reports: %w", err)
	}
	var phases []performance.PerformanceReport
	for _, file := range files {
		content, err := os.ReadFile(file)
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
			fmt.Fprintf(&rows, "| %s | %s | %s | %d | %.0f %% | %.0f %% | %.0f MB | %.0f MB | %.2f cores |\n", spec.file(), p.TestType, p.TotalTime.Round(time.Second),
				p.TotalNodes, 100*p.TotalReservedCPUUtil, 100*p.TotalReservedMemoryUtil, p.KarpenterP95HeapMB, p.KarpenterMaxMemoryMB, p.KarpenterAvgCPUCores)
		}
		if spec.Suite == performanceSuite && !result.passed() {
			fmt.Fprintf(&rows, "| %s | %s | | | | | | | |\n", spec.file(), outcomeFailed)
		}
	}
	if rows.Len() == 0 {
		return ""
	}
	return "\n| file | phase | time | nodes | CPU reserved | memory reserved | heap (95 %) | RSS (max) | CPU (average) |\n|---|---|---|---|---|---|---|---|---|\n" + rows.String()
}
