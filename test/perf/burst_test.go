// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package perf_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// The lock model: volumes are made and freed one after the other on each storage
// of a Host. These are the simulator's figures of the profile nvme-lvmthin.
const (
	linkDisk      = 180 * time.Millisecond
	makeCloudInit = 120 * time.Millisecond
	growDisk      = 120 * time.Millisecond
	startVM       = 900 * time.Millisecond
)

// atBest is what the locks of one Host allow for n VMs: its storage never idles, and
// the last VM still has to start.
func atBest(n int) time.Duration {
	return time.Duration(n)*(linkDisk+makeCloudInit+growDisk) + startVM
}

// roomy Hosts take ten VMs each.
func roomy(s *pvesim.Scenario) {
	for i := range s.Hosts {
		s.Hosts[i].Cores, s.Hosts[i].Memory = 64, 256*pvesim.GiB
	}
}

// TestBurst launches ten Claims per Host at once.
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
	timed(t, "burst over lock model", judge(ratios))
}

func burst(t *testing.T, hosts, perHost int) float64 {
	t.Helper()
	w := lab.New(t, lab.Options{Hosts: hosts, Speed: unhurried(), Scenario: roomy})
	p := w.Process(lab.Start{Quiet: true})
	var launches sync.WaitGroup
	began := time.Now()
	for i := range hosts * perHost {
		name := fmt.Sprintf("pool-%d", i)
		w.Claim(name)
		launches.Go(func() {
			// As the controller: what passes is tried again.
			for try := range 20 {
				err := p.Act(lab.ActLaunch, name)
				if err == nil {
					return
				}
				t.Logf("%s, try %d: %v", name, try, err)
				time.Sleep(500 * time.Millisecond)
			}
			t.Errorf("%s was never launched", name)
		})
	}
	launches.Wait()
	took := w.Clock.Simulated(time.Since(began))
	perHostMost := 0
	for _, host := range w.Hosts {
		perHostMost = max(perHostMost, p.View().NodePoolVMs(lab.Region, host, "default"))
	}
	if left := len(w.Claims()); left != hosts*perHost {
		t.Errorf("%d claims of %d failed", hosts*perHost-left, hosts*perHost)
	}
	best := atBest(perHost)
	t.Logf("%d claims on %d hosts: %s; the locks allow %s at best; at most %d on one host", hosts*perHost, hosts,
		took.Round(time.Millisecond), best.Round(time.Millisecond), perHostMost)
	return took.Seconds() / best.Seconds()
}
