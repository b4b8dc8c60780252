// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// burstSize is the number of nodes of a burst.
const burstSize = 10

// runBurst launches ten nodes on one host at the same time, deletes them at the same time, and
// returns the number of calls per launch and per delete.
func runBurst(t *testing.T, env *lab.Env, p *lab.Process, name string) (launch, del float64) {
	t.Helper()
	env.Sim.ResetRequests()
	launchAll(t, env, p, name, burstSize)
	launch = countCalls(env.Sim) / burstSize
	// In production, a poll has seen the VMs by the time they are deleted.
	testenv.Must(t, p.Refresh())
	env.Sim.ResetRequests()
	deleteAll(t, env, p, name, burstSize)
	del = countCalls(env.Sim) / burstSize
	if left := len(env.Claims()); left != 0 {
		t.Fatalf("%d claims were not deleted", left)
	}
	return launch, del
}

func TestCallsPerNodeBurst(t *testing.T) {
	t.Parallel()
	env := lab.New(t, lab.Options{Speed: 1, Scenario: largeHosts})
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	var launches, deletes []float64
	for i := range repeats(2, 5) {
		launch, del := runBurst(t, env, p, fmt.Sprint("burst-", i))
		t.Logf("burst %d: %.1f calls per launch, %.1f per delete", i, launch, del)
		launches, deletes = append(launches, launch), append(deletes, del)
	}
	checkCount(t, "calls per launch in a burst", representative(launches))
	checkCount(t, "calls per delete in a burst", representative(deletes))
}

// TestTimeAfterBurst launches and deletes single nodes right after a burst, whose tasks took
// several times as long as those of a single node.
func TestTimeAfterBurst(t *testing.T) {
	t.Parallel()
	forEachProfile(t, 2*slowSpeed(), func(l *lifecycle, profile string) {
		for i := range repeats(3, warmupLaunches) {
			l.run(fmt.Sprint("before-", i))
		}
		runBurst(l.t, l.env, l.p, "burst")
		var launches, deletes []float64
		for i := range repeats(3, 5) {
			launch, del := l.run(fmt.Sprint("after-", i))
			launches, deletes = append(launches, launch), append(deletes, del)
		}
		checkTime(l.t, "launch over critical path after a burst, "+profile, representative(launches))
		checkTime(l.t, "delete over critical path after a burst, "+profile, representative(deletes))
	})
}
