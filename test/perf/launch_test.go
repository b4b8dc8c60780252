// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// speed returns the speed to measure times with. With the race detector they are not checked.
func speed(measured float64) float64 {
	if raceDetector {
		return testenv.Speed
	}
	return measured
}

// timeStep creates a NodeClaim, runs a step and returns how long that took in real time. A short
// run retries transient errors: on a busy machine, a wait for a lock can time out.
func timeStep(t *testing.T, env *lab.Env, p *lab.Process, step, class, name string) time.Duration {
	t.Helper()
	env.CreateClaimOf(class, name)
	for {
		began := time.Now()
		err := p.RunStep(step, name)
		if err == nil {
			return time.Since(began)
		}
		if long() || !proxmox.IsTransient(err) {
			t.Fatalf("running step %s of %s: %v", step, name, err)
		}
		env.Sim.ResetRequests()
	}
}

// TestIdleCalls checks that an idle controller sends few calls, regardless of the number of VMs. TestScale measures more.
func TestIdleCalls(t *testing.T) {
	t.Parallel()
	env := lab.New(t, lab.Options{Hosts: 10, Scenario: largeHosts})
	p := env.StartProcess(lab.ProcessOptions{})
	for i := range 20 {
		timeStep(t, env, p, lab.StepLaunch, env.Class.Name, fmt.Sprint("idle-", i))
	}
	p.Run()
	// The controllers still clean up after the launches, for longer on a busy machine, and then read recent changes once more.
	for range 20 {
		env.Sim.ResetRequests()
		env.Clock.Sleep(2 * time.Minute)
		if !slices.ContainsFunc(env.Sim.Requests(), func(r pvesim.Request) bool { return r.Method != http.MethodGet }) {
			break
		}
	}
	env.Clock.Sleep(2 * time.Minute)
	env.Sim.ResetRequests()
	env.Clock.Sleep(2 * time.Minute)
	if calls := len(env.Sim.Requests()) / 2; calls > 8 {
		t.Errorf("found %d calls per minute, want at most 8: %v", calls, env.Sim.RequestCounts())
	}
}

// largeHosts gives each host capacity for ten VMs.
func largeHosts(s *pvesim.Scenario) {
	for i := range s.Hosts {
		s.Hosts[i].Cores, s.Hosts[i].Memory = 64, 256*pvesim.GiB
	}
}

// withStorage moves the disks of all guests to a storage of that type and latency profile.
func withStorage(kind, profile string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		s.Latency = map[string]string{kind: profile}
		disk := &s.Storages[1]
		disk.Type = kind
		if kind == "rbd" {
			disk.Shared = true
		}
		if kind != "dir" {
			return
		}
		disk.Path = "/mnt/images"
		for i := range s.Guests {
			vmid := s.Guests[i].VMID
			for key, value := range s.Guests[i].Config {
				for _, prefix := range []string{"base", "vm"} {
					value = strings.Replace(value, fmt.Sprintf("local-lvm:%s-%d-disk-0", prefix, vmid), fmt.Sprintf("local-lvm:%d/%s-%d-disk-0.qcow2", vmid, prefix, vmid), 1)
				}
				s.Guests[i].Config[key] = strings.Replace(value, fmt.Sprintf("local-lvm:vm-%d-cloudinit", vmid), fmt.Sprintf("local-lvm:%d/vm-%d-cloudinit.qcow2", vmid, vmid), 1)
			}
		}
	}
}
