// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// trouble is one way in which a call or a task goes wrong.
type trouble struct {
	name  string
	fault pvesim.Fault
	// passing troubles must not cost a Claim: the same call may well succeed in a
	// moment.
	passing bool
}

const speed = 50

// tooLong is longer than any call is waited for.
const tooLong = pvesim.Duration(2 * lab.ResponseTimeout * speed)

// callTroubles are the answers that Proxmox, its proxy and the network are known
// to give.
var callTroubles = []trouble{
	{"500 lock time-out", pvesim.Fault{Status: 500, Message: "can't lock file '/var/lock/qemu-server/lock-20001.conf' - got timeout"}, true},
	{"500 no worker", pvesim.Fault{Status: 500, Message: "got no worker upid - start worker failed"}, true},
	{"500 no quorum", pvesim.Fault{Status: 500, Message: "cluster not ready - no quorum?"}, true},
	{"500 unknown", pvesim.Fault{Status: 500, Message: "something that nobody has seen before"}, false},
	{"403", pvesim.Fault{Status: 403, Message: "Permission check failed (/vms/1, VM.Config.CPU)"}, false},
	{"400", pvesim.Fault{Status: 400, Message: "Parameter verification failed."}, false},
	{"401", pvesim.Fault{Status: 401}, true},
	{"502", pvesim.Fault{Status: 502}, true},
	{"595", pvesim.Fault{Status: 595}, true},
	{"596", pvesim.Fault{Status: 596}, true},
	{"dropped before", pvesim.Fault{DropBefore: true}, true},
	{"dropped after", pvesim.Fault{DropAfter: true}, true},
	{"too slow", pvesim.Fault{Delay: tooLong}, true},
}

// taskTroubles are the ways in which a task that was accepted ends.
var taskTroubles = []trouble{
	{"task fails on a lock", pvesim.Fault{Fail: "can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"}, true},
	{"task fails", pvesim.Fault{Fail: "something that nobody has seen before"}, false},
	{"task takes a minute", pvesim.Fault{Delay: pvesim.Duration(time.Minute)}, true},
	{"task hangs, then cancelled", pvesim.Fault{Hang: true}, false},
}

// place is where a trouble strikes: the n-th call of its kind in an act, a task of
// a kind, or the n-th write to the Kubernetes API.
type place struct {
	act              string
	method, template string
	nth              int
	task             string
}

func (p place) String() string {
	switch {
	case p.task != "":
		return p.act + ", task " + p.task
	case p.method == "":
		return fmt.Sprintf("%s, write %d to Kubernetes", p.act, p.nth+1)
	}
	return fmt.Sprintf("%s, %s %s (%d)", p.act, p.method, p.template, p.nth+1)
}

// at makes a fault strike there, once or from then on.
func (p place) at(f pvesim.Fault, forGood bool) pvesim.Fault {
	if p.task != "" {
		f.Task = p.task
	} else {
		f.Method, f.Path, f.Skip = p.method, p.template, p.nth
	}
	if !forGood {
		f.Count = 1
	}
	return f
}

// byCalendar are calls that a poll makes when their time has come, whatever is being
// done to a VM: an act need not meet them.
var byCalendar = []string{"/version", "/cluster/options", "/cluster/ha/status/manager_status", "/cluster/mapping/pci", "/cluster/sdn/ipams/{ipam}/status"}

// record lives a VM's life undisturbed and lists the places where it could have
// been disturbed: every call, every task, every write to the Kubernetes API.
func record(t *testing.T, on lab.Installation) (calls, tasks, writes []place) {
	t.Helper()
	w := lab.New(t, lab.Options{Speed: speed, Installation: on, Addresses: 1})
	p := w.Process(lab.Start{Quiet: true})
	teach(t, w, p)
	var written atomic.Int64
	p.OnWrite(func(after bool) {
		if after {
			written.Add(1)
		}
	})
	w.Claim("recorded")
	for _, act := range []string{lab.ActLaunch, lab.ActHandOver, lab.ActDelete} {
		if act == lab.ActDelete {
			w.Delete("recorded")
		}
		w.Sim.ResetRequests()
		written.Store(0)
		if err := p.Act(act, "recorded"); err != nil {
			t.Fatalf("recording the %s, %v", act, err)
		}
		nth, seen := map[string]int{}, map[string]bool{}
		for _, request := range w.Sim.Requests() {
			if slices.Contains(byCalendar, request.Template) {
				continue
			}
			key := request.Method + " " + request.Template
			calls = append(calls, place{act: act, method: request.Method, template: request.Template, nth: nth[key]})
			nth[key]++
			if kind := taskKind(request.Path); kind != "" && !seen[kind] {
				seen[kind] = true
				tasks = append(tasks, place{act: act, task: kind})
			}
		}
		for n := range int(written.Load()) {
			writes = append(writes, place{act: act, nth: n})
		}
	}
	if len(w.Claims()) > 0 {
		t.Fatalf("the recorded delete did not end with its first call")
	}
	return calls, tasks, writes
}

// taskKind is the type in the UPID of a path that asks for a task.
func taskKind(path string) string {
	_, upid, ok := strings.Cut(path, "/tasks/UPID:")
	if fields := strings.Split(upid, ":"); ok && len(fields) > 5 {
		return fields[4]
	}
	return ""
}

// sample picks n of a list, all if n is 0.
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
