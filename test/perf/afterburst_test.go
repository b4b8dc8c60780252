// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// burstSize is the number of nodes of a burst.
const burstSize = 10

// runBurst launches ten nodes on one host at the same time, deletes them at the same time, and
// returns the number of calls per launch and per delete.
func runBurst(t *testing.T, env *lab.Env, p *lab.Process, name string) (launch, del float64) {
	t.Helper()
	each := func(do func(claim string)) float64 {
		env.Sim.ResetRequests()
		var work sync.WaitGroup
		for i := range burstSize {
			work.Go(func() { do(fmt.Sprintf("%s-%d", name, i)) })
		}
		work.Wait()
		return float64(len(env.Sim.Requests())) / burstSize
	}
	launch = each(func(claim string) {
		env.CreateClaim(claim)
		if err := p.RunStep(lab.StepLaunch, claim); err != nil {
			t.Errorf("launching %s: %v", claim, err)
		}
	})
	// In production, a poll has seen the VMs by the time they are deleted.
	testenv.Must(t, p.Refresh())
	del = each(func(claim string) {
		env.DeleteClaim(claim)
		// Delete returns before the end if it takes longer than its limit.
		for p.RunStep(lab.StepDelete, claim) == nil {
		}
	})
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

// TestTimeAfterBurst launches and deletes single nodes after a burst.
func TestTimeAfterBurst(t *testing.T) {
	t.Parallel() // it mostly waits
	env := lab.New(t, lab.Options{Speed: 2 * slowSpeed(), Scenario: largeHosts})
	var o *observer
	p := env.StartProcess(lab.ProcessOptions{Quiet: true, Client: func(c proxmox.Client) proxmox.Client { o = observe(c); return o }})
	run := func(name string) (launch, del float64) {
		took := timeStep(t, env, p, lab.StepLaunch, env.Class.Name, name)
		launch = took.Seconds() / o.criticalPath().Seconds()
		began := time.Now()
		deleteClaim(t, env, p, name)
		return launch, time.Since(began).Seconds() / o.deletePath().Seconds()
	}
	for i := range repeats(3, warmupLaunches) {
		run(fmt.Sprint("before-", i))
	}
	runBurst(t, env, p, "burst")
	var launches, deletes []float64
	for i := range repeats(3, 5) {
		launch, del := run(fmt.Sprint("after-", i))
		t.Logf("launch %d after the burst: ratio %.3f, delete %.3f", i, launch, del)
		launches, deletes = append(launches, launch), append(deletes, del)
	}
	checkTime(t, "launch over critical path, after a burst", representative(launches))
	checkTime(t, "delete over critical path, after a burst", representative(deletes))
}
