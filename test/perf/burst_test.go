// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
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

// TestBurst launches ten NodeClaims per host at the same time.
func TestBurst(t *testing.T) {
	const perHost = 10
	hosts := repeats(2, 10)
	var ratios []float64
	for range repeats(3, 3) {
		ratio := burst(t, hosts, perHost)
		ratios = append(ratios, ratio)
		if !long() && ratio <= limit(t, "burst over lock model")*slack {
			break
		}
	}
	checkTime(t, "burst over lock model", representative(ratios))
}

func burst(t *testing.T, hosts, perHost int) float64 {
	t.Helper()
	env := lab.New(t, lab.Options{Hosts: hosts, Speed: slowSpeed(), Scenario: largeHosts})
	p := env.StartProcess(lab.ProcessOptions{Quiet: true})
	var launches sync.WaitGroup
	began := env.Clock.Now()
	for i := range hosts * perHost {
		name := fmt.Sprintf("pool-%d", i)
		env.CreateClaim(name)
		launches.Go(func() {
			// Transient errors are retried, as by the controller.
			for try := range 20 {
				err := p.RunStep(lab.StepLaunch, name)
				if err == nil {
					return
				}
				t.Logf("%s, attempt %d: %v", name, try, err)
				time.Sleep(500 * time.Millisecond)
			}
			t.Errorf("%s was not launched", name)
		})
	}
	launches.Wait()
	took := env.Clock.Since(began)
	perHostMost := 0
	for _, host := range env.Hosts {
		perHostMost = max(perHostMost, p.Inventory.View().NodePoolVMs(testenv.Region, host, "default"))
	}
	if left := len(env.Claims()); left != hosts*perHost {
		t.Errorf("%d claims of %d failed", hosts*perHost-left, hosts*perHost)
	}
	best := lockModelTime(perHost)
	t.Logf("%d claims on %d hosts: %s; lock model %s; at most %d on one host", hosts*perHost, hosts,
		took.Round(time.Millisecond), best.Round(time.Millisecond), perHostMost)
	return took.Seconds() / best.Seconds()
}
