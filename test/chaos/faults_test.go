// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// failure is one way in which a call or a task fails.
type failure struct {
	name  string
	fault pvesim.Fault
	// transient failures must not delete a NodeClaim: the same call may succeed later.
	transient bool
}

// tooLong is longer than any response timeout.
const tooLong = pvesim.Duration(2 * lab.ResponseTimeout * testenv.Speed)

// callFailures are known responses of Proxmox, its proxy and the network.
var callFailures = []failure{
	{"500 lock timeout", pvesim.Fault{Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout"}, true},
	{"500 no worker", pvesim.Fault{Status: 500, Message: "got no worker upid - start worker failed"}, true},
	{"500 no quorum", pvesim.Fault{Status: 500, Message: "cluster not ready - no quorum?"}, true},
	{"500 unknown", pvesim.Fault{Status: 500, Message: "some unknown error"}, false},
	{"403", pvesim.Fault{Status: 403, Message: "Permission check failed (/vms/1, VM.Config.CPU)"}, false},
	{"400", pvesim.Fault{Status: 400, Message: "Parameter verification failed."}, false},
	{"401", pvesim.Fault{Status: 401}, true},
	{"502", pvesim.Fault{Status: 502}, true},
	{"595", pvesim.Fault{Status: 595}, true},
	{"596", pvesim.Fault{Status: 596}, true},
	{"596 after the call", pvesim.Fault{Status: 596, AfterCall: true}, true},
	{"dropped before", pvesim.Fault{DropBefore: true}, true},
	{"dropped after", pvesim.Fault{DropAfter: true}, true},
	{"dropped after, upload cut", pvesim.Fault{CutUpload: true}, true},
	{"too slow", pvesim.Fault{Delay: tooLong}, true},
}

// taskFailures are the ways in which an accepted task fails.
var taskFailures = []failure{
	{"task fails on a lock", pvesim.Fault{Fail: "can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"}, true},
	{"task fails", pvesim.Fault{Fail: "some unknown error"}, false},
	{"task fails after its work", pvesim.Fault{FailAfter: "unable to open file - No such file or directory"}, false},
	{"task takes a minute", pvesim.Fault{Delay: pvesim.Duration(time.Minute)}, true},
	{"task hangs, then canceled", pvesim.Fault{Hang: true}, false},
}

// place is where a fault is injected: the n-th call of its kind in a step, a task of a kind,
// or the n-th write to the Kubernetes API.
type place struct {
	step             string
	method, template string
	nth              int
	task             string
}

func (p place) String() string {
	switch {
	case p.task != "":
		return p.step + ", task " + p.task
	case p.method == "":
		return fmt.Sprintf("%s, write %d to Kubernetes", p.step, p.nth+1)
	}
	return fmt.Sprintf("%s, %s %s (%d)", p.step, p.method, p.template, p.nth+1)
}

// inject returns the fault limited to this place. It applies once or, if persistent, from then
// on.
func (p place) inject(f pvesim.Fault, persistent bool) pvesim.Fault {
	if p.task != "" {
		f.Task = p.task
	} else {
		f.Method, f.Path, f.Skip = p.method, p.template, p.nth
	}
	if !persistent {
		f.Count = 1
	}
	return f
}

// periodicCalls are made by polls at their own interval, so a step need not make them.
var periodicCalls = []string{"/version", "/cluster/options", "/cluster/ha/status/manager_status", "/cluster/mapping/pci", "/cluster/sdn/ipams/{ipam}/status"}

// places are where a fault can be injected in a VM's lifecycle: calls, tasks and writes to the Kubernetes API.
type places struct{ calls, tasks, writes []place }

// recorded are the places of each installation, by installation.
var recorded = struct {
	sync.Mutex
	places map[lab.Installation]places
}{places: map[lab.Installation]places{}}

// recordPlaces runs a VM's lifecycle without faults, once for each installation, and returns the places. On a busy machine, a
// lock can take longer than its ten-second timeout, so it tries again.
func recordPlaces(t *testing.T, on lab.Installation) (calls, tasks, writes []place) {
	t.Helper()
	recorded.Lock()
	defer recorded.Unlock()
	found, ok := recorded.places[on]
	var err error
	for n := 0; n < 5 && !ok; n++ {
		found.calls, found.tasks, found.writes, err = tryRecordPlaces(t, on)
		ok = err == nil
	}
	if !ok {
		t.Fatal(err)
	}
	recorded.places[on] = found
	return slices.Clone(found.calls), found.tasks, found.writes
}

func tryRecordPlaces(t *testing.T, on lab.Installation) (calls, tasks, writes []place, err error) {
	t.Helper()
	env := lab.New(t, lab.Options{Installation: on, Addresses: 1, DataDisk: true, Machine: true})
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	warmUp(t, env, p)
	var written atomic.Int64
	p.OnWrite(func(after bool) {
		if after {
			written.Add(1)
		}
	})
	env.CreateClaim("recorded")
	for _, step := range []string{lab.StepLaunch, lab.StepCleanup, lab.StepDelete} {
		if step == lab.StepDelete {
			env.DeleteClaim("recorded")
		}
		env.Sim.ResetRequests()
		written.Store(0)
		if err = p.RunStep(step, "recorded"); err != nil {
			return nil, nil, nil, fmt.Errorf("recording step %s: %w", step, err)
		}
		called, kinds := placesOf(step, env.Sim.Requests())
		calls, tasks = append(calls, called...), append(tasks, kinds...)
		for n := range int(written.Load()) {
			writes = append(writes, place{step: step, nth: n})
		}
	}
	if left := len(env.Claims()); left > 0 {
		return nil, nil, nil, fmt.Errorf("recording step %s: %d claims are left after one call", lab.StepDelete, left)
	}
	return calls, tasks, writes, nil
}

// placesOf returns the calls of the controller in requests and the kinds of their tasks. Repeated
// reads count once, because their number depends on the load of the machine.
func placesOf(step string, requests []pvesim.Request) (calls, tasks []place) {
	nth, read, seen := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, request := range requests {
		if request.Who != pvesim.DefaultTokenID || slices.Contains(periodicCalls, request.Template) {
			continue
		}
		key := request.Method + " " + request.Template
		if request.Method != http.MethodGet {
			clear(read)
		}
		if !read[key] {
			calls = append(calls, place{step: step, method: request.Method, template: request.Template, nth: nth[key]})
		}
		read[key] = true
		nth[key]++
		if kind := taskKind(request.Path); kind != "" && !seen[kind] {
			seen[kind] = true
			tasks = append(tasks, place{step: step, task: kind})
		}
	}
	return calls, tasks
}

// taskKind returns the type in the UPID of a task path.
func taskKind(path string) string {
	_, upid, ok := strings.Cut(path, "/tasks/UPID:")
	if fields := strings.Split(upid, ":"); ok && len(fields) > 5 {
		return fields[4]
	}
	return ""
}

// sample returns n random elements of a list, or all if n is 0.
func sample[T any](r *rand.Rand, list []T, n int) []T {
	if n == 0 || n >= len(list) {
		return list
	}
	var out []T
	for _, i := range r.Perm(len(list))[:n] {
		out = append(out, list[i])
	}
	return out
}

// testCase is an Env with one NodeClaim on which all steps before the tested one were run.
type testCase struct {
	t       *testing.T
	env     *lab.Env
	process *lab.Process
	claim   string
}

// longRetries prevents launches from failing at the retry timeout on a busy machine, so only
// faults that are not transient fail a launch.
func longRetries(s *instance.Settings) { s.LaunchRetryTimeout = time.Hour }

func newCase(t *testing.T, on lab.Installation, step string, settings func(*instance.Settings)) *testCase {
	t.Helper()
	c := &testCase{t: t, env: lab.New(t, lab.Options{Installation: on, Addresses: 1, DataDisk: true, Machine: true}), claim: "pool-abc"}
	c.process = c.env.StartProcess(lab.ProcessOptions{Quiet: true, Settings: settings})
	warmUp(t, c.env, c.process)
	c.env.CreateClaim(c.claim)
	for _, before := range []string{lab.StepLaunch, lab.StepCleanup} {
		if before == step {
			break
		}
		mustRun(t, c.process, before, c.claim)
	}
	if step == lab.StepDelete {
		c.env.DeleteClaim(c.claim)
	}
	return c
}

// warmUp lets a Process learn how long tasks take, on half of the installations. It then runs
// some calls in parallel that it would otherwise run in sequence.
func warmUp(t *testing.T, env *lab.Env, p *lab.Process) {
	t.Helper()
	if env.Installation.Version != "9.2" {
		return
	}
	env.CreateClaim("warmup")
	mustRun(t, p, lab.StepLaunch, "warmup")
	env.DeleteClaim("warmup")
	for len(env.Claims()) > 0 {
		mustRun(t, p, lab.StepDelete, "warmup")
	}
}

// mustRun runs a step without faults. Like the controller, it retries failures: on a busy
// machine, a lock can take longer than its ten-second timeout.
func mustRun(t *testing.T, p *lab.Process, step, claim string) {
	t.Helper()
	var err error
	for range 20 {
		if err = p.RunStep(step, claim); err == nil {
			return
		}
	}
	t.Fatalf("running step %s of %s without faults: %v", step, claim, err)
}

// addFault adds the fault of a case. An admin cancels a task that hangs after a while.
func (c *testCase) addFault(f faultCase) {
	c.env.AddFault(f.inject(f.fault, f.persistent))
	if f.fault.Hang {
		time.AfterFunc(c.env.Clock.Real(20*time.Second), c.env.CancelTasks)
	}
}

// clearFaults removes all faults and cancels tasks that hang.
func (c *testCase) clearFaults() {
	hung := false
	for _, f := range c.env.Sim.Faults() {
		hung = hung || f.Hang
	}
	c.env.Sim.ClearFaults()
	if hung {
		c.env.CancelTasks()
	}
}

// killAt kills the Process at a place, before or after the call takes effect.
func (c *testCase) killAt(at place, after bool) {
	c.t.Helper()
	if at.method == "" {
		// Clone and boot data write concurrently.
		var n atomic.Int64
		c.process.OnWrite(func(done bool) {
			if done == after && n.Add(1) == int64(at.nth)+1 {
				c.process.Abort()
			}
		})
		return
	}
	c.env.AddFault(at.inject(pvesim.Fault{DropBefore: !after, DropAfter: after}, false))
	go testenv.OnFault(c.process.Context(), c.env.Sim, c.process.Abort)
}

// runUntilReached runs a step until it has reached the place of killAt. Like mustRun, it retries
// on a busy machine.
func (c *testCase) runUntilReached(step string) {
	for range 20 {
		_ = c.process.RunStep(step, c.claim)
		if c.process.Context().Err() != nil || slices.ContainsFunc(c.env.Sim.Faults(), func(f pvesim.FaultState) bool { return f.Hits > 0 }) {
			return
		}
	}
}

// awaitKill waits until the Process has been killed and all its goroutines have ended.
func (c *testCase) awaitKill() {
	c.t.Helper()
	select {
	case <-c.process.Context().Done():
	case <-time.After(30 * time.Second):
		c.t.Fatal("the process did not reach the place where it is killed")
	}
	c.process.Kill()
}

// settle waits until all invariants hold, then deletes the NodeClaim if it still exists and
// waits until nothing of it remains. It reports whether the NodeClaim existed.
func (c *testCase) settle(step string) (kept bool) {
	c.t.Helper()
	c.env.MustConverge(c.process, "after the fault")
	kept = len(c.env.Claims()) > 0
	if step == lab.StepDelete && kept {
		c.t.Errorf("the claim still exists")
	}
	if kept {
		c.env.DeleteClaim(c.claim)
		c.env.MustConverge(c.process, "after deleting the claim")
	}
	return kept
}
