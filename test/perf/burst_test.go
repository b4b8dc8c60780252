// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

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

// lockModelTime returns the minimum time for n VMs on one host: its storage is never idle, and
// the last VM still has to start.
func lockModelTime(n int) time.Duration {
	return time.Duration(n)*(linkDisk+makeCloudInit+growDisk) + startVM
}

// largeHosts gives each host capacity for ten VMs.
func largeHosts(s *pvesim.Scenario) {
	for i := range s.Hosts {
		s.Hosts[i].Cores, s.Hosts[i].Memory = 64, 256*pvesim.GiB
	}
}

// deleteModelTime returns the minimum time for deleting n VMs on one host: the first VM has to
// stop, and then its storage is never idle.
func deleteModelTime(n int) time.Duration {
	return stopVM + time.Duration(n)*freeDisk
}

// TestBurst launches ten NodeClaims per host at the same time, and then deletes them at the same
// time.
func TestBurst(t *testing.T) {
	sizes := []int{10, 50, 100, 300}
	for _, size := range sizes[:repeats(1, len(sizes))] {
		launchName, deleteName := fmt.Sprintf("burst of %d over lock model", size), fmt.Sprintf("burst of %d deletes over lock model", size)
		var launches, deletes []float64
		for range 3 {
			launch, del := burst(t, size/burstSize)
			launches, deletes = append(launches, launch), append(deletes, del)
			if inRange(t, launchName, slices.Min(launches)) && inRange(t, deleteName, slices.Min(deletes)) {
				break
			}
		}
		checkTime(t, launchName, representative(launches))
		checkTime(t, deleteName, representative(deletes))
	}
}

// burst returns the durations of the launches and of the deletes relative to the lock model.
func burst(t *testing.T, hosts int) (launch, del float64) {
	t.Helper()
	n := hosts * burstSize
	env := lab.New(t, lab.Options{Hosts: hosts, Speed: slowSpeed(), Scenario: largeHosts})
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	launched, deleted := runBurst(t, env, p, "pool", n)
	t.Logf("%d claims on %d hosts: launched in %s, lock model %s; deleted in %s, lock model %s", n, hosts,
		launched.took.Round(time.Millisecond), lockModelTime(burstSize), deleted.took.Round(time.Millisecond), deleteModelTime(burstSize))
	p.Kill()
	return launched.took.Seconds() / lockModelTime(burstSize).Seconds(), deleted.took.Seconds() / deleteModelTime(burstSize).Seconds()
}

// launchAll launches n NodeClaims at the same time and returns the simulated time that it took.
func launchAll(t *testing.T, env *lab.Env, p *lab.Process, name string, n int) time.Duration {
	t.Helper()
	for i := range n {
		env.CreateClaim(fmt.Sprintf("%s-%d", name, i))
	}
	return concurrently(t, env, name, n, func(claim string) error { return p.RunStep(lab.StepLaunch, claim) })
}

// deleteAll deletes n NodeClaims at the same time and returns the simulated time that it took.
func deleteAll(t *testing.T, env *lab.Env, p *lab.Process, name string, n int) time.Duration {
	t.Helper()
	for i := range n {
		env.DeleteClaim(fmt.Sprintf("%s-%d", name, i))
	}
	return concurrently(t, env, name, n, func(claim string) (err error) {
		// Delete returns before the end if it takes longer than its limit.
		for err == nil {
			err = p.RunStep(lab.StepDelete, claim)
		}
		return client.IgnoreNotFound(err)
	})
}

// concurrently does the same for n NodeClaims and returns the simulated time that it took.
func concurrently(t *testing.T, env *lab.Env, name string, n int, do func(claim string) error) time.Duration {
	t.Helper()
	var work sync.WaitGroup
	began := env.Clock.Now()
	for i := range n {
		claim := fmt.Sprintf("%s-%d", name, i)
		work.Go(func() {
			// Transient errors are retried, as by the controller.
			for try := range 20 {
				err := do(claim)
				if err == nil {
					return
				}
				t.Logf("%s, attempt %d: %v", claim, try, err)
				time.Sleep(500 * time.Millisecond)
			}
			t.Errorf("%s failed", claim)
		})
	}
	work.Wait()
	return env.Clock.Since(began)
}
