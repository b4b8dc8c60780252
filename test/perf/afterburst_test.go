// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// burstSize is the number of nodes of a burst.
const burstSize = 10

// runBurst launches n NodeClaims at the same time, deletes them at the same time, and returns the number of calls and the
// simulated time of each.
func runBurst(t *testing.T, env *lab.Env, p *lab.Process, name string, n int) (launch, del burstFigures) {
	t.Helper()
	env.Sim.ResetRequests()
	launch = burstFigures{took: launchAll(t, env, p, name, n), calls: countCalls(env.Sim)}
	if left := len(env.Claims()); left != n {
		t.Errorf("%d claims of %d failed", n-left, n)
	}
	// In production, a poll has seen the VMs by the time they are deleted.
	testenv.Must(t, p.Refresh())
	env.Sim.ResetRequests()
	del = burstFigures{took: deleteAll(t, env, p, name, n), calls: countCalls(env.Sim)}
	if left := len(env.Claims()); left != 0 {
		t.Fatalf("%d claims were not deleted", left)
	}
	return launch, del
}

type burstFigures struct {
	took  time.Duration
	calls float64
}

func TestCallsPerNodeBurst(t *testing.T) {
	t.Parallel()
	env := lab.New(t, lab.Options{Speed: 1, Scenario: largeHosts})
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	launch, del := measure(repeats(2, 5), func(i int) (float64, float64) {
		launch, del := runBurst(t, env, p, fmt.Sprint("burst-", i), burstSize)
		return launch.calls / burstSize, del.calls / burstSize
	})
	checkCount(t, "calls per launch in a burst", launch)
	checkCount(t, "calls per delete in a burst", del)
}

// TestTimeAfterBurst launches and deletes single nodes right after a burst, whose tasks took
// several times as long as those of a single node.
func TestTimeAfterBurst(t *testing.T) {
	t.Parallel()
	forEachProfile(t, 2*slowSpeed(), func(l *lifecycle, profile string) {
		for i := range repeats(3, warmupLaunches) {
			l.run(fmt.Sprint("before-", i))
		}
		runBurst(l.t, l.env, l.p, "burst", burstSize)
		launch, del := measure(repeats(3, 5), func(i int) (float64, float64) { return l.run(fmt.Sprint("after-", i)) })
		checkTime(l.t, "launch over critical path after a burst, "+profile, launch)
		checkTime(l.t, "delete over critical path after a burst, "+profile, del)
	})
}
