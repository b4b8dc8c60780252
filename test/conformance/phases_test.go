// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sigs.k8s.io/karpenter/test/suites/performance"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestPhases(t *testing.T) {
	t.Parallel()
	dir, began := t.TempDir(), time.Now()
	for name, phase := range map[string]performance.PerformanceReport{
		"scale_out":     {TestType: "scale-out", Timestamp: began, TotalTime: 61 * time.Second, TotalNodes: 70, TotalReservedCPUUtil: 0.9, KarpenterMaxMemoryMB: 200},
		"consolidation": {TestType: "consolidation", Timestamp: began.Add(time.Minute), KarpenterAvgCPUCores: 0.25, KarpenterP95HeapMB: 99},
	} {
		content, err := json.Marshal(phase)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name+"_performance_report.json"), content, 0o600))
	}
	phases, err := readPhases(dir)
	must(t, err)
	spec := Spec{Suite: performanceSuite, File: "basic_test.go", Text: "should scale", Line: 1}
	kwok := spec
	kwok.Kwok = true
	r := &runner{specs: []Spec{spec, kwok}, results: map[string]Result{
		spec.id(): {Spec: spec, Phases: phases}, kwok.id(): {Spec: kwok, Phases: phases[:1], Problem: "too slow\nfor its own limits"},
	}}
	got, bad := r.table()
	want := `| file | specs | passed | allowed | failed or not run | time |
|---|---|---|---|---|---|
| performance/basic | 1 | 1 | 0 | 0 | 0s |
| performance/basic (kwok) | 1 | 0 | 1 | 0 | 0s |
| all | 2 | 1 | 1 | 0 | 0s |

| file | provider | phase | time | nodes | CPU reserved | memory reserved | heap (95 %) | RSS (max) | CPU (average) |
|---|---|---|---|---|---|---|---|---|---|
| performance/basic | proxmox | scale-out | 1m1s | 70 | 90 % | 0 % | 0 MB | 200 MB | 0.00 cores |
| performance/basic | proxmox | consolidation | 0s | 0 | 0 % | 0 % | 99 MB | 0 MB | 0.25 cores |
| performance/basic | kwok | scale-out | 1m1s | 70 | 90 % | 0 % | 0 MB | 200 MB | 0.00 cores |
| performance/basic | kwok | FAILED | | | | | | | |

- performance/basic_test.go should scale (kwok): allowed: the kwok provider is only compared; it failed: too slow for its own limits
`
	if got != want || bad != 0 {
		t.Errorf("table with %d bad specs, want 0:\n%s\nwant:\n%s", bad, got, want)
	}
}

// TestPerformanceCluster checks that the pods of the performance suite's largest spec fit into its cluster.
func TestPerformanceCluster(t *testing.T) {
	t.Parallel()
	options := worldKind{Large: true}.proxmox()
	scenario := pvesim.DefaultScenario(options.Hosts)
	options.Scenario(scenario)
	cpus := 0
	for _, host := range scenario.Hosts {
		cpus += host.Cores
	}
	if want := 2 * (1000*9/10 + 1000*35/10); cpus < want { // twice the requests of host_name_spreading_xl_test.go
		t.Errorf("the cluster has %d CPUs, want at least %d", cpus, want)
	}
}
