// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/perf"
)

func TestRangeContains(t *testing.T) {
	t.Parallel()
	low, high := 0.9, 1.2
	for name, test := range map[string]struct {
		r     perf.Range
		value float64
		slack float64
		want  bool
	}{
		"at_the_maximum":          {perf.Range{Max: &high}, 1.2, 1, true},
		"above_the_maximum":       {perf.Range{Max: &high}, 1.21, 1, false},
		"above_it_with_slack":     {perf.Range{Max: &high}, 1.7, 1.5, true},
		"at_the_minimum":          {perf.Range{Min: &low}, 0.9, 1, true},
		"below_the_minimum":       {perf.Range{Min: &low}, 0.89, 1, false},
		"below_it_with_slack":     {perf.Range{Min: &low}, 0.7, 1.5, true},
		"far_below_it_with_slack": {perf.Range{Min: &low}, 0.5, 1.5, false},
		"between_both":            {perf.Range{Min: &low, Max: &high}, 1, 1, true},
		"maximum_without_minimum": {perf.Range{Max: &high}, -1, 1, true},
	} {
		if got := test.r.Contains(test.value, test.slack); got != test.want {
			t.Errorf("%s: %s contains %g with slack %g: %t, want %t", name, test.r, test.value, test.slack, got, test.want)
		}
	}
}

// TestResults checks that the stored figures are in their ranges.
func TestResults(t *testing.T) {
	t.Parallel()
	results, err := perf.ReadResults("results.json")
	testenv.Must(t, err)
	for name, figure := range results {
		if r, err := perf.FindRange(name); err != nil || !r.Contains(figure.Value, 1) {
			t.Errorf("results.json, %s: found %g, allowed: %s (%v)", name, figure.Value, r, err)
		}
	}
}

// TestUpdateResults measures one figure again, where the file also has one that is no longer in
// ranges.yaml.
func TestUpdateResults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results.json")
	testenv.Must(t, perf.UpdateResults(path, perf.Results{
		"calls per launch": {Value: 12, Command: "make bench"}, "calls per delete": {Value: 7, Command: "make bench"}, "removed": {Value: 1},
	}))
	testenv.Must(t, perf.UpdateResults(path, perf.Results{"calls per launch": {Value: 11.70001, Command: "make bench BENCH=TestCalls|TestBurst"}}))
	results, err := perf.ReadResults(path)
	testenv.Must(t, err)
	if len(results) != 2 || results["calls per launch"].Value != 11.7 || results["calls per delete"].Value != 7 {
		t.Errorf("results are %v, want a new figure and a kept one", results)
	}
	page, err := perf.Page(results)
	testenv.Must(t, err)
	for _, row := range []string{
		"| calls per launch | 11.7 | at most 8 | `make bench BENCH=TestCalls\\|TestBurst` |\n",
		"| calls per delete | 7 | at most 6 | `make bench` |\n",
		"| calls per delete in a burst | not measured | at most 6 | – |\n",
	} {
		if !strings.Contains(page, row) {
			t.Errorf("the page has no row %q:\n%s", row, page)
		}
	}
	table, err := perf.Table(perf.Results{"calls per launch": {Value: 13}})
	testenv.Must(t, err)
	if !strings.Contains(table, "OUT OF RANGE") || !strings.Contains(table, "figures of test/perf/ranges.yaml were not measured") {
		t.Errorf("the table does not report a figure out of its range and missing figures:\n%s", table)
	}
}
