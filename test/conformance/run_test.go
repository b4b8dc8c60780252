// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/karpenter/test/suites/performance"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

func spec(text string, line int) Spec {
	return Spec{Suite: "regression", Description: "Regression", File: "integration_test.go", Line: line, Text: text}
}

func TestSpecFocus(t *testing.T) {
	t.Parallel()
	s := spec("should allow labels ([*].example.com)", 318)
	pattern := regexp.MustCompile(strings.TrimPrefix(s.focus()[0], "--ginkgo.focus="))
	for text, want := range map[string]bool{
		"Regression should allow labels ([*].example.com)":        true,
		"Regression should allow labels (x.example.com)":          false,
		"Regression should allow labels ([*].example.com) longer": false,
	} {
		if got := pattern.MatchString(text); got != want {
			t.Errorf("focus matches %q: %t, want %t", text, got, want)
		}
	}
	if same := spec(s.Text, 1); same.id() == s.id() {
		t.Error("specs with the same text have the same ID")
	}
}

func TestStore(t *testing.T) {
	t.Parallel()
	s := store{dir: t.TempDir()}
	passed := Result{Spec: spec("should pass", 1), Inputs: "one"}
	if _, found, err := s.read(passed.Spec, "one"); found || err != nil {
		t.Fatalf("read before write: found %t, error %v", found, err)
	}
	testenv.Must(t, s.write(passed))
	for inputs, want := range map[string]bool{"one": true, "another controller": false} {
		if _, valid, err := s.read(passed.Spec, inputs); valid != want || err != nil {
			t.Errorf("read with inputs %q: valid %t, want %t; error %v", inputs, valid, want, err)
		}
	}
}

// TestTable checks the table of all outcomes, with the figures that the performance suite writes.
func TestTable(t *testing.T) {
	t.Parallel()
	dir, began := t.TempDir(), time.Now()
	for name, phase := range map[string]performance.PerformanceReport{
		"scale_out":     {TestType: "scale-out", Timestamp: began, TotalTime: 61 * time.Second, TotalNodes: 70, TotalReservedCPUUtil: 0.9, KarpenterMaxMemoryMB: 200},
		"consolidation": {TestType: "consolidation", Timestamp: began.Add(time.Minute), KarpenterAvgCPUCores: 0.25, KarpenterP95HeapMB: 99},
	} {
		content, err := json.Marshal(phase)
		testenv.Must(t, err)
		testenv.Must(t, os.WriteFile(filepath.Join(dir, name+"_performance_report.json"), content, 0o600))
	}
	phases, err := readPhases(dir)
	testenv.Must(t, err)
	scale, slow := spec("should scale", 7), spec("should be fast", 8)
	scale.Suite, slow.Suite = performanceSuite, performanceSuite
	r := &runner{results: map[string]Result{}, lists: lists{Allowed: []allowed{
		{Spec: spec("should be for kwok only", 2).String(), Reason: "kwok only"}, {Spec: spec("should be fixed", 3).String(), Reason: "a bug"},
	}}}
	for i, result := range []Result{
		{Spec: spec("should pass", 1)},
		{Spec: spec("should be for kwok only", 2), Problem: "skipped", Skipped: true},
		{Spec: spec("should be fixed", 3)},
		{Spec: spec("should fail", 4), Problem: "Timed out\nafter 15m"},
		{Spec: spec("should be repeated", 5), Attempt: 2},
		{Spec: scale, Phases: phases},
		{Spec: slow, Phases: phases[:1], Problem: "too slow\nfor its own limits"},
	} {
		result.Took = time.Duration(i) * time.Second
		r.specs = append(r.specs, result.Spec)
		r.results[result.Spec.id()] = result
	}
	r.specs = append(r.specs, spec("should be interrupted", 6))
	got, bad := r.table()
	want := `| file | specs | passed | allowed | failed or not run | time |
|---|---|---|---|---|---|
| regression/integration | 6 | 2 | 1 | 3 | 10s |
| performance/integration | 2 | 1 | 0 | 1 | 11s |
| all | 8 | 3 | 1 | 4 | 21s |

| file | phase | time | nodes | CPU reserved | memory reserved | heap (95 %) | RSS (max) | CPU (average) |
|---|---|---|---|---|---|---|---|---|
| performance/integration | scale-out | 1m1s | 70 | 90 % | 0 % | 0 MB | 200 MB | 0.00 cores |
| performance/integration | consolidation | 0s | 0 | 0 % | 0 % | 99 MB | 0 MB | 0.25 cores |
| performance/integration | scale-out | 1m1s | 70 | 90 % | 0 % | 0 MB | 200 MB | 0.00 cores |
| performance/integration | FAILED | | | | | | | |

- regression/integration_test.go should be for kwok only: allowed: kwok only
- regression/integration_test.go should be fixed: STALE: it passed; remove it from the allowed specs in specs.yaml
- regression/integration_test.go should fail: FAILED: Timed out after 15m
- regression/integration_test.go should be repeated: passed when it was repeated alone
- performance/integration_test.go should be fast: FAILED: too slow for its own limits
`
	if got != want || bad != 4 {
		t.Errorf("table with %d bad specs, want 4:\n%s\nwant:\n%s", bad, got, want)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	l, err := readLists()
	testenv.Must(t, err)
	if err := l.check([]string{"none"}, nil); err != nil {
		t.Errorf("checking lists of other suites: %v", err)
	}
	l.Representative = append(l.Representative, "regression/integration_test.go renamed")
	if err := l.check([]string{"regression"}, nil); err == nil {
		t.Error("a list that names no spec is accepted")
	}
}

// TestSelect lists the specs with a script in place of a suite, because suites take minutes to build.
func TestSelect(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	controller := filepath.Join(dir, "controller")
	testenv.Must(t, os.WriteFile(controller, []byte("1"), 0o600))
	testenv.Must(t, os.WriteFile(binary(dir, "regression"), []byte(listingScript), 0o700))
	newRunner := func(focus string) *runner {
		o := options{dir: dir, suites: []string{"regression"}, focus: regexp.MustCompile(focus), world: worldOptions{Controller: controller}}
		r := &runner{options: o, store: store{dir: filepath.Join(dir, "results")}}
		testenv.Must(t, r.selectSpecs(t.Context()))
		return r
	}
	r := newRunner("")
	if len(r.specs) != 2 || r.specs[1].String() != "regression/integration_test.go should join" {
		t.Fatalf("selected %v, want two specs by line", r.specs)
	}
	testenv.Must(t, r.store.write(Result{Spec: r.specs[1], Inputs: r.inputs["regression"]}))
	if r = newRunner("integration_test.go should join$"); len(r.specs) != 1 || len(r.results) != 1 {
		t.Errorf("found specs %v and results %v, want one spec with its result", r.specs, r.results)
	}
	testenv.Must(t, os.WriteFile(controller, []byte("2"), 0o600))
	if r = newRunner(""); len(r.specs) != 2 || len(r.results) != 0 {
		t.Errorf("with a new controller, found specs %v and results %v, want no result", r.specs, r.results)
	}
}

// listingScript is a program that writes a report with two specs, as the dry run of a suite does.
const listingScript = `#!/bin/sh
for arg; do case $arg in --ginkgo.json-report=*) report=${arg#*=};; esac; done
spec() { echo '{"LeafNodeType": "It", "LeafNodeText": "'"$1"'", "LeafNodeLocation": {"FileName": "integration_test.go", "LineNumber": '"$2"'}}'; }
echo "[{\"SpecReports\": [$(spec 'should join' 2), $(spec 'should leave' 1)]}]" > "$report"
`

// TestPodDeletedWhileStarting checks that no controller outlives its pod: it would hold the
// Lease for which the suites wait.
func TestPodDeletedWhileStarting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	binary, started := filepath.Join(dir, "controller"), filepath.Join(dir, "started")
	testenv.Must(t, os.WriteFile(binary, []byte("#!/bin/sh\necho x >> "+started+"\nexec sleep 600\n"), 0o700))
	controller, err := harness.NewController(harness.ControllerOptions{Binary: binary, Dir: dir})
	testenv.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	p := &systemPod{controller: controller, done: make(chan struct{})}
	go p.run(ctx)
	for { // until the process runs
		if written, _ := os.ReadFile(started); len(written) > 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-p.done
	if controller.Running() {
		t.Error("the controller still runs")
	}
	if starts, err := os.ReadFile(started); err != nil || string(starts) != "x\n" {
		t.Errorf("starts: %q, want one; error %v", starts, err)
	}
}
