// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// observer is a Proxmox client that measures when tasks were requested and when the controller
// noticed their end. The simulator tells when they ended.
type observer struct {
	proxmox.Client
	sim   *pvesim.Simulator
	mu    sync.Mutex
	tasks map[proxmox.UPID]*span
	// last are the newest tasks by kind.
	last map[string]*span
}

// requestTime is how long a request takes without load.
const requestTime = 33 * time.Millisecond

// span is the time between the response that named a task and the first one that could show its end.
type span struct{ began, ended, noticed time.Time }

func (s *span) took() time.Duration {
	if s == nil {
		return 0
	}
	return s.ended.Sub(s.began)
}

func observe(c proxmox.Client, sim *pvesim.Simulator) *observer {
	return &observer{Client: c, sim: sim, tasks: map[proxmox.UPID]*span{}, last: map[string]*span{}}
}

// watch measures a task from the moment Proxmox returned its ID. The time before belongs to
// the call and counts as the controller's.
func (o *observer) watch(task proxmox.UPID, err error) (proxmox.UPID, error) {
	if err != nil || task == "" {
		return task, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tasks[task] = &span{began: time.Now()}
	o.last[task.Kind()] = o.tasks[task]
	return task, nil
}

// notice records that the controller has read that tasks ended.
func (o *observer) notice(rows ...proxmox.TaskStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, row := range rows {
		if s := o.tasks[row.UPID]; s != nil && row.Ended() && s.noticed.IsZero() {
			s.noticed = time.Now()
			ended, _ := o.sim.TaskEnd(string(row.UPID))
			s.ended = ended.Add(requestTime)
		}
	}
}

func (o *observer) Task(ctx context.Context, task proxmox.UPID) (proxmox.TaskStatus, error) {
	status, err := o.Client.Task(ctx, task)
	if err == nil {
		o.notice(status)
	}
	return status, err
}

func (o *observer) RecentTasks(ctx context.Context, host, user string, since time.Time) ([]proxmox.TaskStatus, error) {
	rows, err := o.Client.RecentTasks(ctx, host, user, since)
	o.notice(rows...)
	return rows, err
}

// criticalPath returns the minimum time that Proxmox's tasks allow: the boot drive is uploaded
// during the clone, and the rest follows in sequence. A start that was requested while the
// disk was still being resized has waited for it; that time counts once.
func (o *observer) criticalPath() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	start, grow := *o.last["qmstart"], o.last["resize"]
	if grow != nil && grow.ended.After(start.began) {
		start.began = grow.ended
	}
	return max(o.last["qmclone"].took(), o.last["imgcopy"].took()) + grow.took() + start.took()
}

// deletePath returns the time that Proxmox's tasks of a delete take in sequence.
func (o *observer) deletePath() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last["qmstop"].took() + o.last["qmdestroy"].took() + o.last["imgdel"].took()
}

// reads returns how often the status of each task was read, relative to the bound.
func (o *observer) reads(counts map[string]int) []float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ratios []float64
	for task, s := range o.tasks {
		first := shortest[task.Kind()]
		if n := counts[string(task)]; n > 0 && first > 0 {
			ratios = append(ratios, float64(n)/(1+math.Log(max(1, s.noticed.Sub(s.began).Seconds()/first.Seconds()))/math.Log(1.2)))
		}
	}
	return ratios
}

// lateness returns how late the controller noticed the end of each task, relative to a fifth of the
// task's duration, or to 0.1 s if that is longer. Tasks that nobody waits for are not listed.
func (o *observer) lateness() []float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var late []float64
	for _, s := range o.tasks {
		if !s.noticed.IsZero() {
			late = append(late, s.noticed.Sub(s.ended).Seconds()/max(s.took()/5, 100*time.Millisecond).Seconds())
		}
	}
	return late
}

func (o *observer) StopVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	return o.watch(o.Client.StopVM(ctx, host, vmid))
}

func (o *observer) DestroyVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	return o.watch(o.Client.DestroyVM(ctx, host, vmid))
}

func (o *observer) DeleteVolume(ctx context.Context, host, volume string) (proxmox.UPID, error) {
	return o.watch(o.Client.DeleteVolume(ctx, host, volume))
}

func (o *observer) CloneVM(ctx context.Context, req proxmox.CloneRequest) (proxmox.UPID, error) {
	return o.watch(o.Client.CloneVM(ctx, req))
}

func (o *observer) UploadISO(ctx context.Context, host, storage, name string, image []byte) (proxmox.UPID, error) {
	return o.watch(o.Client.UploadISO(ctx, host, storage, name, image))
}

func (o *observer) ResizeDisk(ctx context.Context, host string, vmid int, disk string, bytes int64) (proxmox.UPID, error) {
	return o.watch(o.Client.ResizeDisk(ctx, host, vmid, disk, bytes))
}

func (o *observer) StartVM(ctx context.Context, host string, vmid int) (proxmox.UPID, error) {
	return o.watch(o.Client.StartVM(ctx, host, vmid))
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
