// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// warmupLaunches is the number of launches after which the controller knows how long tasks
// take.
const warmupLaunches = 8

// slowSpeed is slower than real time, which reduces the effect of load on the result, more so
// in a long run.
func slowSpeed() float64 {
	if long() {
		return 0.15
	}
	return 0.5
}

// timeStep creates a NodeClaim, runs a step and returns how long that took in real time.
func timeStep(t *testing.T, env *lab.Env, p *lab.Process, step, class, name string) time.Duration {
	t.Helper()
	env.CreateClaimOf(class, name)
	began := time.Now()
	if err := p.RunStep(step, name); err != nil {
		t.Fatalf("running step %s of %s: %v", step, name, err)
	}
	return time.Since(began)
}

func deleteClaim(t *testing.T, env *lab.Env, p *lab.Process, name string) {
	t.Helper()
	env.DeleteClaim(name)
	for range 100 {
		if err := p.RunStep(lab.StepDelete, name); err != nil {
			t.Fatalf("deleting %s: %v", name, err)
		}
		if len(env.Claims()) == 0 {
			return
		}
	}
	t.Fatalf("%s was not deleted", name)
}

func TestCallsPerNode(t *testing.T) {
	t.Parallel()
	env := lab.New(t, lab.Options{Speed: 5})
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	var launches, deletes []float64
	for i := range warmupLaunches + repeats(3, 7) {
		name := fmt.Sprintf("pool-%d", i)
		env.Sim.ResetRequests()
		timeStep(t, env, p, lab.StepLaunch, env.Class.Name, name)
		calls := len(env.Sim.Requests())
		// In production, a poll has seen the VM by the time it is deleted.
		testenv.Must(t, p.Refresh())
		env.Sim.ResetRequests()
		deleteClaim(t, env, p, name)
		if i >= warmupLaunches {
			launches, deletes = append(launches, float64(calls)), append(deletes, float64(len(env.Sim.Requests())))
		}
	}
	checkCount(t, "calls per launch", representative(launches))
	checkCount(t, "calls per delete", representative(deletes))
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

// TestLaunchTime compares the time from a NodeClaim to its started VM with the duration of
// Proxmox's own tasks for each type of storage.
func TestLaunchTime(t *testing.T) {
	for profile, kind := range map[string]string{"nvme-lvmthin": "lvmthin", "zfs": "zfspool", "ceph": "rbd", "hdd-dir": "dir", "ssd-dir": "dir"} {
		if profile != "nvme-lvmthin" && !long() {
			continue
		}
		t.Run(profile, func(t *testing.T) {
			t.Parallel() // they mostly wait
			env := lab.New(t, lab.Options{Speed: slowSpeed(), Scenario: withStorage(kind, profile)})
			var o *observer
			p := env.StartProcess(lab.ProcessOptions{Quiet: true, Client: func(c proxmox.Client) proxmox.Client { o = observe(c); return o }})
			name := "launch over critical path, " + profile
			var ratios []float64
			for i := range warmupLaunches + repeats(4, 5) {
				claim := fmt.Sprintf("pool-%d", i)
				took := timeStep(t, env, p, lab.StepLaunch, env.Class.Name, claim)
				path := o.criticalPath()
				ratio := took.Seconds() / path.Seconds()
				t.Logf("after %2d launches: %s, critical path %s, ratio %.3f", i, took.Round(time.Millisecond), path.Round(time.Millisecond), ratio)
				deleteClaim(t, env, p, claim)
				if i < warmupLaunches {
					continue
				}
				ratios = append(ratios, ratio)
				if !long() && ratio <= limit(t, name)*slack {
					break
				}
			}
			checkTime(t, name, representative(ratios))
		})
	}
}
