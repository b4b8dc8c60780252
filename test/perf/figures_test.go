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

// long tells whether all is measured.
func long() bool { return os.Getenv("PERF") == "long" }

// repeats is how often something is measured.
func repeats(short, all int) int {
	if long() {
		return all
	}
	return short
}

// limit of a figure.
func limit(t *testing.T, name string) float64 {
	t.Helper()
	ranges := map[string]float64{}
	if err := yaml.Unmarshal(rangesFile, &ranges); err != nil {
		t.Fatalf("reading ranges.yaml, %v", err)
	}
	most, ok := ranges[name]
	if !ok {
		t.Fatalf("ranges.yaml has no figure %q", name)
	}
	return most
}

// count prints a count beside its range, and fails when it left that.
func count(t *testing.T, name string, value float64) {
	t.Helper()
	within(t, name, value, limit(t, name))
}

// timed does the same for something that was measured in time. A sample beside
// other tests shows only gross regressions, so that it has some slack.
func timed(t *testing.T, name string, value float64) {
	t.Helper()
	most := limit(t, name)
	switch {
	case raceDetector:
		t.Logf("%-52s %8.3f  (not judged with the race detector on)", name, value)
		return
	case !long():
		most *= slack
	}
	within(t, name, value, most)
}

const slack = 1.5

func within(t *testing.T, name string, value, most float64) {
	t.Helper()
	t.Logf("%-52s %8.3f  (at most %g)", name, value, most)
	if value > most {
		t.Errorf("%s: %.3f is more than %g", name, value, most)
	}
}

// judge is the value that counts: the median of all when everything is measured,
// the best when only a sample is, since other work on the machine disturbs that.
func judge(values []float64) float64 {
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
