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

// warmupLaunches is the number of launches after which the controller knows how long tasks
// take.
const warmupLaunches = 8

// slowSpeed is slower than real time, which reduces the effect of load on the result, more so
// in a long run.
func slowSpeed() float64 {
	if long() {
		return speed(0.15)
	}
	return speed(0.5)
}

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

func deleteClaim(t *testing.T, env *lab.Env, p *lab.Process, name string) {
	t.Helper()
	env.DeleteClaim(name)
	for range 100 {
		if err := p.RunStep(lab.StepDelete, name); err != nil && (long() || !proxmox.IsTransient(err)) {
			t.Fatalf("deleting %s: %v", name, err)
		}
		if len(env.Claims()) == 0 {
			return
		}
	}
	t.Fatalf("%s was not deleted", name)
}

// countCalls returns the number of calls since ResetRequests. In a short run, all polls of a task
// count as one, and lists of tasks, which poll several at once, do not count: load on the machine
// delays tasks, so the controller polls more often.
func countCalls(sim *pvesim.Simulator) float64 {
	polled := map[string]bool{}
	calls := 0
	for _, r := range sim.Requests() {
		switch {
		case !long() && strings.HasSuffix(r.Template, "/tasks/{upid}/status"):
			polled[r.Path] = true
		case !long() && r.Template == "/nodes/{node}/tasks":
		default:
			calls++
		}
	}
	return float64(calls + len(polled))
}

func TestCallsPerNode(t *testing.T) {
	t.Parallel()
	env := lab.New(t, lab.Options{Speed: 5})
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	lifecycle := func(i int) (launch, del float64) {
		name := fmt.Sprintf("pool-%d", i)
		env.Sim.ResetRequests()
		timeStep(t, env, p, lab.StepLaunch, env.Class.Name, name)
		launch = countCalls(env.Sim)
		// In production, a poll has seen the VM by the time it is deleted.
		testenv.Must(t, p.Refresh())
		env.Sim.ResetRequests()
		deleteClaim(t, env, p, name)
		return launch, countCalls(env.Sim)
	}
	measure(warmupLaunches, lifecycle)
	launch, del := measure(repeats(3, 7), lifecycle)
	checkCount(t, "calls per launch", launch)
	checkCount(t, "calls per delete", del)
}

// TestIdleCalls checks that an idle controller sends few calls, regardless of the number of VMs. TestScale measures more.
func TestIdleCalls(t *testing.T) {
	t.Parallel()
	env := lab.New(t, lab.Options{Hosts: 10, Scenario: largeHosts})
	p := env.StartProcess(lab.ProcessOptions{})
	launchAll(t, env, p, "idle", 20)
	p.Run()
	// The controllers still clean up after the launches, for longer on a busy machine, and read recent changes once more.
	for range 20 {
		env.Clock.Sleep(time.Minute)
		env.Sim.ResetRequests()
		env.Clock.Sleep(2 * time.Minute)
		if !slices.ContainsFunc(env.Sim.Requests(), func(r pvesim.Request) bool { return r.Method != http.MethodGet }) {
			break
		}
	}
	if calls := len(env.Sim.Requests()) / 2; calls > 8 {
		t.Errorf("found %d calls per minute, want at most 8: %v", calls, env.Sim.RequestCounts())
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

// storageProfiles are the latency profiles of the simulator with a storage type that uses them.
// "go test" measures only the first.
var storageProfiles = []struct{ name, kind string }{
	{"nvme-lvmthin", "lvmthin"}, {"zfs", "zfspool"}, {"ceph", "rbd"}, {"hdd-dir", "dir"}, {"ssd-dir", "dir"},
}

// forEachProfile runs a test for each storage profile.
func forEachProfile(t *testing.T, speed float64, test func(l *lifecycle, profile string)) {
	t.Helper()
	for _, profile := range storageProfiles[:repeats(1, len(storageProfiles))] {
		t.Run(profile.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			scenario := func(s *pvesim.Scenario) { largeHosts(s); withStorage(profile.kind, profile.name)(s) }
			l := &lifecycle{t: t, env: lab.New(t, lab.Options{Speed: speed, Scenario: scenario})}
			l.restart()
			test(l, profile.name)
		})
	}
}

// lifecycle times launches and deletes relative to Proxmox's own tasks.
type lifecycle struct {
	t     *testing.T
	env   *lab.Env
	p     *lab.Process
	tasks *observer
}

// restart starts a process that has not learned any durations.
func (l *lifecycle) restart() {
	if l.p != nil {
		l.p.Kill()
	}
	l.p = l.env.StartProcess(lab.ProcessOptions{Quiet: true, Client: func(c proxmox.Client) proxmox.Client { l.tasks = observe(c); return l.tasks }})
}

// run launches and deletes a NodeClaim and returns how many times as long as its critical path
// each took.
func (l *lifecycle) run(name string) (launch, del float64) {
	l.t.Helper()
	took := timeStep(l.t, l.env, l.p, lab.StepLaunch, l.env.Class.Name, name)
	path := l.tasks.criticalPath()
	// In production, a poll has seen the VM by the time it is deleted.
	testenv.Must(l.t, l.p.Refresh())
	began := time.Now()
	deleteClaim(l.t, l.env, l.p, name)
	deleted := time.Since(began)
	launch, del = took.Seconds()/path.Seconds(), deleted.Seconds()/l.tasks.deletePath().Seconds()
	l.t.Logf("%s: %s, critical path %s, ratio %.3f; deleted in %s, ratio %.3f", name,
		took.Round(time.Millisecond), path.Round(time.Millisecond), launch, deleted.Round(time.Millisecond), del)
	return launch, del
}

// TestLaunchTime compares the time from a NodeClaim to its started VM, and that of its
// deletion, with the duration of Proxmox's own tasks for each type of storage.
func TestLaunchTime(t *testing.T) {
	t.Parallel()
	forEachProfile(t, slowSpeed(), func(l *lifecycle, profile string) {
		launchName, deleteName := "launch over critical path, "+profile, "delete over critical path, "+profile
		for i := range warmupLaunches {
			l.run(fmt.Sprint("warmup-", i))
		}
		var launches, deletes []float64
		for i := range repeats(4, 5) {
			launch, del := l.run(fmt.Sprint("pool-", i))
			launches, deletes = append(launches, launch), append(deletes, del)
			if inRange(l.t, launchName, launch) && inRange(l.t, deleteName, slices.Min(deletes)) {
				break
			}
		}
		checkTime(l.t, launchName, representative(launches))
		checkTime(l.t, deleteName, representative(deletes))
		if !long() {
			return
		}
		first, _ := measure(3, func(i int) (float64, float64) {
			l.restart()
			return l.run(fmt.Sprint("first-", i))
		})
		checkTime(l.t, "first launch over critical path, "+profile, first)
	})
}
