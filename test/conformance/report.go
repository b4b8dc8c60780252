// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/reporters"
	"github.com/onsi/ginkgo/v2/types"
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
	case result.passed() && (reason == "" || result.Spec.Kwok):
		return outcomePassed
	case result.passed():
		return outcomeStale
	case reason != "":
		return outcomeAllowed
	}
	return outcomeFailed
}

// report prints the table, and writes it and a JUnit file. It returns an error unless all
// specs have the expected outcome.
func (r *runner) report(out io.Writer) error {
	if err := r.writeJUnit(); err != nil {
		return err
	}
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
		file := spec.group()
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
	case outcome == outcomeAllowed && result.Spec.Kwok:
		return "allowed: " + r.lists.reason(result.Spec) + "; it failed: " + oneLine(result.Problem)
	case outcome == outcomeAllowed:
		return "allowed: " + r.lists.reason(result.Spec)
	case outcome == outcomeStale:
		return "STALE: it passed; remove it from the allowed specs in specs.yaml"
	case outcome == outcomeFailed:
		return "FAILED: " + oneLine(result.Problem)
	case outcome == outcomePassed && result.Attempt > 1:
		return "passed when it was repeated alone"
	}
	return ""
}

// oneLine returns the first lines of a message as one line.
func oneLine(message string) string { return strings.Join(strings.Fields(shorten(message)), " ") }

// writeJUnit writes one file with the results of all suites, without those of the kwok provider.
func (r *runner) writeJUnit() error {
	var files []string
	for _, suite := range r.suites {
		report := types.Report{SuiteDescription: suite, SuiteSucceeded: true}
		for _, spec := range r.specs {
			result, ok := r.results[spec.id()]
			if !ok || spec.Suite != suite || spec.Kwok {
				continue
			}
			report.SpecReports = append(report.SpecReports, result.Report)
			report.RunTime += result.Took
			report.SuiteSucceeded = report.SuiteSucceeded && !r.unexpected(result)
		}
		file := filepath.Join(r.dir, suite+"-junit.xml")
		config := reporters.JunitReportConfig{OmitTimelinesForSpecState: types.SpecStatePassed | types.SpecStateSkipped, OmitCapturedStdOutErr: true}
		if err := reporters.GenerateJUnitReportWithConfig(report, file, config); err != nil {
			return fmt.Errorf("writing JUnit report: %w", err)
		}
		files = append(files, file)
	}
	if messages, err := reporters.MergeAndCleanupJUnitReports(files, filepath.Join(r.dir, "junit.xml")); err != nil {
		return errors.Join(fmt.Errorf("merging JUnit reports: %w", err), errors.New(strings.Join(messages, "; ")))
	}
	return nil
}
