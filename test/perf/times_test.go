// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// storageProfiles are the latency profiles of the simulator with a storage type that uses them.
// "go test" measures only the first.
var storageProfiles = []struct{ name, kind string }{
	{"nvme-lvmthin", "lvmthin"}, {"zfs", "zfspool"}, {"ceph", "rbd"}, {"hdd-dir", "dir"}, {"ssd-dir", "dir"},
}

// shortest are durations of tasks without load.
var shortest = map[string]time.Duration{
	"qmclone": 250 * time.Millisecond, "imgcopy": 100 * time.Millisecond, "resize": 150 * time.Millisecond, "qmstart": time.Second,
	"qmdestroy": 300 * time.Millisecond, "imgdel": 100 * time.Millisecond,
}

// world is a Proxmox cluster and a process of the controller in virtual time, so the load of the machine changes nothing.
type world struct {
	*testenv.Env
	random *rand.Rand
	tasks  *observer
	// simulated are the durations of the tasks of the profile.
	simulated map[string]time.Duration
}

// virtually runs a test in a world with a storage profile. The durations of tasks differ with each run of the bench.
func virtually(t *testing.T, name string, hosts int, profile int, test func(w *world), scenario ...func(*pvesim.Scenario)) {
	t.Helper()
	seed := uint64(1)
	if long() {
		seed = rand.Uint64()
	}
	testenv.RunSimulated(t, name, func(t *testing.T) {
		storage := storageProfiles[profile]
		w := &world{random: rand.New(rand.NewPCG(seed, 0)), Env: testenv.NewFake(t, testenv.NoPolling(), testenv.Hosts(hosts), testenv.Scenario(
			append(scenario, largeHosts, withStorage(storage.kind, storage.name))...))}
		w.Process = w.StartProcess()
		t.Logf("seed %d", seed)
		test(w)
	})
}

// observe measures tasks from now on.
func (w *world) observe() {
	w.tasks = observe(w.Client, w.Sim)
	w.Clients = map[string]proxmox.Client{testenv.Region: w.tasks}
	w.Process = w.StartProcess()
}

// calibrate measures the durations of tasks without faults.
func (w *world) calibrate() {
	w.T.Helper()
	w.observe()
	w.lifecycle("calibration", &ratios{})
	w.simulated = map[string]time.Duration{}
	for kind, s := range w.tasks.last {
		w.simulated[kind] = s.took()
	}
	w.observe()
}

// vary makes each of the next tasks take one to five times as long as the shortest one of its kind; with load, at
// least four times.
func (w *world) vary(load bool) {
	w.Sim.ClearFaults()
	for kind, duration := range shortest {
		factor := 1 + 4*w.random.Float64()
		if load {
			factor = 4 + w.random.Float64()
		}
		w.AddFault(pvesim.Fault{Task: kind, Delay: pvesim.Duration(max(0, time.Duration(factor*float64(duration))-w.simulated[kind]))})
	}
	if load {
		w.AddFault(pvesim.Fault{Method: http.MethodGet, Delay: pvesim.Duration(200 * time.Millisecond)})
	}
}

// ratios are how many times as long as Proxmox's own tasks launches and deletes took.
type ratios struct{ launch, del []float64 }

// lifecycle launches and deletes a VM.
func (w *world) lifecycle(name string, r *ratios) {
	w.T.Helper()
	began := time.Now()
	claim := w.Process.Launched(name, w.NodeClass)
	took, critical := time.Since(began), w.tasks.criticalPath()
	r.launch = append(r.launch, took.Seconds()/critical.Seconds())
	w.Refresh() // a poll has seen the VM by the time it is deleted
	began = time.Now()
	w.Process.Delete(claim)
	deleted, deletePath := time.Since(began), w.tasks.deletePath()
	r.del = append(r.del, deleted.Seconds()/deletePath.Seconds())
	w.T.Logf("%s: launched in %s, %s of them tasks; deleted in %s, %s of them tasks", name, took, critical, deleted, deletePath)
}

// percentile returns the value that p percent of the values do not exceed.
func percentile(values []float64, p int) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)*p+99)/100-1]
}

func (w *world) check(what, profile string, r ratios) {
	w.T.Helper()
	checkCount(w.T, "launch over critical path, median, "+what+profile, percentile(r.launch, 50))
	checkCount(w.T, "launch over critical path, p95, "+what+profile, percentile(r.launch, 95))
	checkCount(w.T, "delete over critical path, median, "+what+profile, percentile(r.del, 50))
	checkCount(w.T, "delete over critical path, p95, "+what+profile, percentile(r.del, 95))
}

// TestLaunchTime compares the time of a launch, and that of a delete, with the duration of Proxmox's own
// tasks, which differ each time: alone, and after launches on a host with much load.
func TestLaunchTime(t *testing.T) {
	t.Parallel()
	for i, profile := range storageProfiles[:repeats(1, len(storageProfiles))] {
		virtually(t, profile.name, 1, i, func(w *world) {
			w.calibrate()
			var alone, after, loaded ratios
			for n := range repeats(20, 100) {
				w.vary(false)
				w.lifecycle(fmt.Sprint("alone-", n), &alone)
			}
			w.check("", profile.name, alone)
			checkCount(w.T, "end of a task noticed late, worst, "+profile.name, slices.Max(w.tasks.lateness()))
			for n := range repeats(20, 100) {
				if n%10 == 0 {
					w.vary(true)
					w.lifecycle(fmt.Sprint("loaded-", n), &loaded)
				}
				w.vary(false)
				w.lifecycle(fmt.Sprint("after-", n), &after)
			}
			w.check("after load, ", profile.name, after)
		})
	}
}

// calls are requests since ResetRequests: reads of the status of each task, lists of tasks, and others.
type calls struct {
	reads         map[string]int
	lists, others float64
}

func (w *world) calls() calls {
	c := calls{reads: map[string]int{}}
	for _, r := range w.Sim.Requests() {
		switch {
		case strings.HasSuffix(r.Template, "/tasks/{upid}/status"):
			c.reads[path.Base(strings.TrimSuffix(r.Path, "/status"))]++
		case r.Template == "/nodes/{node}/tasks":
			c.lists++
		default:
			c.others++
		}
	}
	return c
}

func TestCallsPerNode(t *testing.T) {
	t.Parallel()
	for name, groups := range map[string][]v1alpha1.SecurityGroup{"": nil, ", with a security group": {{Name: testenv.SecurityGroup, Interface: "net0"}}} {
		virtually(t, "calls"+name, 1, 0, func(w *world) {
			w.NodeClass.Spec.SecurityGroups = groups
			w.calibrate()
			var launches, deletes, reads []float64
			for n := range repeats(10, 50) {
				w.vary(false)
				w.Sim.ResetRequests()
				claim := w.Process.Launched(fmt.Sprint("pool-", n), w.NodeClass)
				launch := w.calls()
				reads = append(reads, w.tasks.reads(launch.reads)...)
				w.Refresh()
				w.Sim.ResetRequests()
				w.Process.Delete(claim)
				launches, deletes = append(launches, launch.others), append(deletes, w.calls().others)
			}
			checkCount(w.T, "calls per launch"+name, percentile(launches, 95))
			checkCount(w.T, "calls per delete"+name, percentile(deletes, 95))
			checkCount(w.T, "status reads per task over their bound"+name, slices.Max(reads))
		})
	}
}

// burst launches ten NodeClaims per host at the same time, and then deletes them at the same time. cloned are the
// times from the NodeClaim to its clone request.
func (w *world) burst(n int) (launch, del time.Duration, launchCalls, deleteCalls calls, cloned []float64) {
	w.T.Helper()
	claims := make([]*karpv1.NodeClaim, n)
	for i := range claims {
		claims[i] = w.Planned(fmt.Sprint("burst-", i), w.NodeClass)
	}
	began := time.Now()
	together := func(do func(*karpv1.NodeClaim)) (took time.Duration, sent calls) {
		w.Sim.ResetRequests()
		began, work := time.Now(), sync.WaitGroup{}
		for _, claim := range claims {
			work.Go(func() { do(claim) })
		}
		work.Wait()
		return time.Since(began), w.calls()
	}
	launch, launchCalls = together(func(claim *karpv1.NodeClaim) { w.MustLaunch(claim, w.NodeClass) })
	for _, r := range w.Sim.Requests() {
		if strings.HasSuffix(r.Template, "/clone") {
			cloned = append(cloned, r.Time.Sub(began).Seconds())
		}
	}
	w.Refresh()
	del, deleteCalls = together(func(claim *karpv1.NodeClaim) { w.Process.Delete(claim) })
	return launch, del, launchCalls, deleteCalls, cloned
}

// The lock model: on each storage of a host, volumes are created and freed one after the
// other. These are the simulator's durations of the profile nvme-lvmthin.
const (
	linkDisk      = 180 * time.Millisecond
	makeCloudInit = 120 * time.Millisecond
	growDisk      = 120 * time.Millisecond
	startVM       = 900 * time.Millisecond
	stopVM        = 600 * time.Millisecond
	freeDisk      = 150 * time.Millisecond
)

// burstSize is the number of nodes of a burst on one host.
const burstSize = 10

// lockModelTime returns the minimum time for n VMs on one host: its storage is never idle, and
// the last VM still has to start.
func lockModelTime(n int) time.Duration {
	return time.Duration(n)*(linkDisk+makeCloudInit+growDisk) + startVM
}

// deleteModelTime returns the minimum time for deleting n VMs on one host: the first VM has to
// stop, and then its storage is never idle.
func deleteModelTime(n int) time.Duration {
	return stopVM + time.Duration(n)*freeDisk
}

func TestBurst(t *testing.T) {
	t.Parallel()
	virtually(t, "late_lists", 1, 0, func(w *world) {
		launch, del, _, _, _ := w.burst(burstSize)
		checkCount(w.T, "burst of 10 over lock model, late task lists", launch.Seconds()/lockModelTime(burstSize).Seconds())
		checkCount(w.T, "burst of 10 deletes over lock model, late task lists", del.Seconds()/deleteModelTime(burstSize).Seconds())
	}, func(s *pvesim.Scenario) { s.Hosts[0].TaskListDelay = pvesim.Duration(2 * time.Second) })
	for _, hosts := range []int{1, 5, 10, 30}[:repeats(1, 4)] {
		n := hosts * burstSize
		virtually(t, fmt.Sprint(n), hosts, 0, func(w *world) {
			launch, del, launchCalls, deleteCalls, cloned := w.burst(n)
			w.T.Logf("%d claims on %d hosts: launched in %s, lock model %s; deleted in %s, lock model %s", n, hosts, launch, lockModelTime(burstSize), del, deleteModelTime(burstSize))
			checkCount(w.T, fmt.Sprintf("burst of %d over lock model", n), launch.Seconds()/lockModelTime(burstSize).Seconds())
			checkCount(w.T, fmt.Sprintf("burst of %d deletes over lock model", n), del.Seconds()/deleteModelTime(burstSize).Seconds())
			if hosts == 10 {
				checkCount(w.T, "burst of 100: NodeClaim to clone request, p95, simulated s", percentile(cloned, 95))
			}
			if hosts == 1 {
				checkCount(w.T, "calls per launch in a burst", launchCalls.others/burstSize)
				checkCount(w.T, "calls per delete in a burst", deleteCalls.others/burstSize)
				checkCount(w.T, "task lists per launch in a burst", launchCalls.lists/burstSize)
				checkCount(w.T, "task lists per delete in a burst", deleteCalls.lists/burstSize)
			}
		})
	}
}
