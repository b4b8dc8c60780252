// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	_ "embed"
	"os"
	"slices"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

//go:embed ranges.yaml
var rangesFile []byte

// long reports whether everything is measured.
func long() bool { return os.Getenv("PERF") == "long" }

// repeats returns the number of measurements.
func repeats(short, all int) int {
	if long() {
		return all
	}
	return short
}

// limit returns the maximum of a figure.
func limit(t *testing.T, name string) float64 {
	t.Helper()
	ranges := map[string]float64{}
	if err := yaml.Unmarshal(rangesFile, &ranges); err != nil {
		t.Fatalf("reading ranges.yaml: %v", err)
	}
	most, ok := ranges[name]
	if !ok {
		t.Fatalf("ranges.yaml has no figure %q", name)
	}
	return most
}

// checkCount logs a count and its limit and fails if it exceeds the limit.
func checkCount(t *testing.T, name string, value float64) {
	t.Helper()
	checkLimit(t, name, value, limit(t, name))
}

// checkTime does the same for a duration. A short run beside other tests only detects large
// regressions, so its limit is higher.
func checkTime(t *testing.T, name string, value float64) {
	t.Helper()
	most := limit(t, name)
	switch {
	case raceDetector:
		t.Logf("%-52s %8.3f  (not checked with the race detector)", name, value)
		return
	case !long():
		most *= slack
	}
	checkLimit(t, name, value, most)
}

const slack = 1.5

func checkLimit(t *testing.T, name string, value, most float64) {
	t.Helper()
	t.Logf("%-52s %8.3f  (at most %g)", name, value, most)
	if value > most {
		t.Errorf("%s: %.3f is more than %g", name, value, most)
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

func p95(durations []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[len(sorted)*95/100].Seconds()
}
