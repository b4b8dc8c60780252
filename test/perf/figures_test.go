// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/perf"
)

// file guards the file PERF_FIGURES, to which each figure is written at once, so an aborted run
// keeps what it measured.
var file sync.Mutex

func store(name string, value float64) error {
	path := os.Getenv("PERF_FIGURES")
	if !long() || path == "" {
		return nil
	}
	file.Lock()
	defer file.Unlock()
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(perf.Update(string(content), name, value)), 0o644)
}

// long reports whether everything is measured.
func long() bool { return os.Getenv("PERF") == "long" }

// repeats returns the number of measurements.
func repeats(short, all int) int {
	if long() {
		return all
	}
	return short
}

// slack is how many times worse a time may be in "go test": a short run beside other tests only
// detects large regressions.
const slack = 1.5

// checkCount records a count and fails if it is out of its range.
func checkCount(t *testing.T, name string, value float64) {
	t.Helper()
	check(t, name, value, 1)
}

// checkTime does the same for a figure that depends on time.
func checkTime(t *testing.T, name string, value float64) {
	t.Helper()
	switch {
	case raceDetector:
		t.Logf("%-52s %8.3f  (not checked with the race detector)", name, value)
	case long():
		check(t, name, value, 1)
	default:
		check(t, name, value, slack)
	}
}

func check(t *testing.T, name string, value, slack float64) {
	t.Helper()
	f, err := perf.Find(name)
	testenv.Must(t, err)
	testenv.Must(t, store(name, value))
	t.Logf("%-52s %8.3f  (%s)", name, value, f.Allowed())
	if !f.Contains(value, slack) {
		t.Errorf("%s: found %.3f, allowed: %s", name, value, f.Allowed())
	}
}

// representative returns the median in a long run. In a short run it returns the best value,
// because load on the machine affects the median.
func representative(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if long() {
		return sorted[len(sorted)/2]
	}
	return sorted[0]
}

// p95 returns the 95th percentile in seconds.
func p95(durations []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[len(sorted)*95/100].Seconds()
}

func TestFigureContains(t *testing.T) {
	t.Parallel()
	low, high := 0.9, 1.2
	for name, test := range map[string]struct {
		f            perf.Figure
		value, slack float64
		want         bool
	}{
		"at_the_maximum":          {perf.Figure{Max: &high}, 1.2, 1, true},
		"above_the_maximum":       {perf.Figure{Max: &high}, 1.21, 1, false},
		"above_it_with_slack":     {perf.Figure{Max: &high}, 1.7, 1.5, true},
		"at_the_minimum":          {perf.Figure{Min: &low}, 0.9, 1, true},
		"below_the_minimum":       {perf.Figure{Min: &low}, 0.89, 1, false},
		"below_it_with_slack":     {perf.Figure{Min: &low}, 0.7, 1.5, true},
		"far_below_it_with_slack": {perf.Figure{Min: &low}, 0.5, 1.5, false},
	} {
		if got := test.f.Contains(test.value, test.slack); got != test.want {
			t.Errorf("%s: %s contains %g with slack %g: %t, want %t", name, test.f.Allowed(), test.value, test.slack, got, test.want)
		}
	}
}

// TestMeasured checks that the stored figures are in their ranges.
func TestMeasured(t *testing.T) {
	t.Parallel()
	sections, err := perf.Sections()
	testenv.Must(t, err)
	for _, section := range sections {
		for _, f := range section.Figures {
			if f.Measured != nil && !f.Contains(*f.Measured, 1) {
				t.Errorf("figures.yaml, %s: found %g, allowed: %s", f.Name, *f.Measured, f.Allowed())
			}
		}
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	const content = "# figures\n- title: calls\n  figures:\n" +
		"    - {name: calls, max: 8, measured: 6}\n    - {name: \"calls, idle\", max: 8}\n    - {name: time, min: 1, variants: {zfs: 1.5, ceph: null}}\n"
	got := content
	for name, value := range map[string]float64{"calls": 5.00001, "calls, idle": 7, "time, zfs": 2, "time, ceph": 0.5, "unknown": 1} {
		got = perf.Update(got, name, value)
	}
	want := strings.NewReplacer("measured: 6", "measured: 5", "8}", "8, measured: 7}", "zfs: 1.5", "zfs: 2", "ceph: null", "ceph: 0.5").Replace(content)
	if got != want {
		t.Errorf("updated figures are:\n%s\nwant:\n%s", got, want)
	}
}
