// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/perf"
)

// recorded are the figures of this run. Each is written to the file PERF_RESULTS at once, so an
// aborted run keeps what it measured.
var recorded = struct {
	sync.Mutex
	results perf.Results
}{results: perf.Results{}}

func store(name string, value float64) error {
	recorded.Lock()
	defer recorded.Unlock()
	recorded.results[name] = perf.Figure{Value: value, Command: os.Getenv("PERF_COMMAND")}
	path := os.Getenv("PERF_RESULTS")
	if !long() || path == "" {
		return nil
	}
	return perf.UpdateResults(path, recorded.results)
}

// TestMain prints the table of "make bench".
func TestMain(m *testing.M) {
	code := m.Run()
	if table, err := perf.Table(recorded.results); long() {
		fmt.Print(table)
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			code = 1
		}
	}
	os.Exit(code)
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
	r, err := perf.FindRange(name)
	testenv.Must(t, err)
	testenv.Must(t, store(name, value))
	t.Logf("%-52s %8.3f  (%s)", name, value, r)
	if !r.Contains(value, slack) {
		t.Errorf("%s: found %.3f, allowed: %s", name, value, r)
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
