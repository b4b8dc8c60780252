// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package power_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
)

// world applies decisions to Hosts and lets random events happen between them.
type world struct {
	region power.Region
	rand   *rand.Rand
}

func newWorld(seed uint64) *world {
	w := &world{rand: rand.New(rand.NewPCG(seed, 1)), region: power.Region{Now: now}}
	if w.rand.IntN(2) == 0 {
		w.region.QDeviceVotes, w.region.QDeviceConnected = 1+w.rand.IntN(3), true
	}
	for i := range 1 + w.rand.IntN(8) {
		host := idleHost(fmt.Sprint("host", i))
		host.Votes = w.rand.IntN(3)
		host.Settings.MinAwake = 1 + w.rand.IntN(3)
		host.Settings.WattsIdle = float64(w.rand.IntN(100))
		host.Settings.Mode = declared.PowerEnabled
		if w.rand.IntN(5) == 0 {
			host.Settings.Mode = declared.PowerNone
		}
		w.region.Hosts = append(w.region.Hosts, host)
	}
	return w
}

// happen changes some Hosts: guests start and end, VMs arrive, Hosts boot, power off and fail.
func (w *world) happen() {
	w.region.Now = w.region.Now.Add(time.Duration(w.rand.IntN(90)) * time.Minute)
	for i := range w.region.Hosts {
		host := &w.region.Hosts[i]
		if host.State == power.Waking && w.rand.IntN(2) == 0 {
			host.State, host.IdleSince = power.Awake, w.region.Now
		}
		switch {
		case host.State == power.ShuttingDown && w.rand.IntN(2) == 0:
			host.State = power.Asleep
		case host.State == power.Asleep && w.rand.IntN(10) == 0:
			host.VMs = []string{"20000 (being launched)"}
		case host.State == power.Offline && w.rand.IntN(3) == 0, host.State == power.Awake && w.rand.IntN(30) == 0:
			host.State = map[power.State]power.State{power.Offline: power.Awake, power.Awake: power.Offline}[host.State]
		}
		if host.State != power.Awake {
			continue
		}
		switch w.rand.IntN(6) {
		case 0:
			host.VMs, host.IdleSince = []string{"VM 20000"}, time.Time{}
		case 1:
			host.VMs, host.IdleSince = nil, w.region.Now.Add(-time.Hour)
		case 2:
			host.Backups = map[string]time.Time{"job": w.region.Now.Add(time.Duration(w.rand.IntN(120)) * time.Minute)}
		}
	}
}

// apply carries decisions out.
func (w *world) apply(decisions []power.Decision) {
	for _, d := range decisions {
		i := slices.IndexFunc(w.region.Hosts, func(h power.Host) bool { return h.Name == d.Host })
		switch d.Action {
		case power.Sleep:
			w.region.Hosts[i].State = power.ShuttingDown
		case power.Wake:
			w.region.Hosts[i].State = power.Waking
		case power.Keep:
		}
	}
}

func (w *world) quorate() bool {
	total, votes := w.region.QDeviceVotes, w.region.QDeviceVotes
	for _, host := range w.region.Hosts {
		total += host.Votes
		if host.State == power.Awake {
			votes += host.Votes
		}
	}
	return 2*votes > total
}

func (w *world) awake() (awake, least int) {
	least = 1
	for _, host := range w.region.Hosts {
		least = max(least, host.Settings.MinAwake)
		if host.State == power.Awake {
			awake++
		}
	}
	return awake, least
}

// No sequence of decisions loses quorum, shuts a Host in use down, or drops below the minimum
// of awake Hosts.
func TestDecideProperties(t *testing.T) {
	t.Parallel()
	sleeps, wakes := 0, 0
	for seed := range uint64(1000) {
		w := newWorld(seed)
		for step := range 30 {
			w.happen()
			quorate := w.quorate()
			before, least := w.awake()
			decisions := power.Decide(w.region)
			for _, d := range decisions {
				i := slices.IndexFunc(w.region.Hosts, func(h power.Host) bool { return h.Name == d.Host })
				host := w.region.Hosts[i]
				if d.Action == power.Sleep {
					sleeps++
				} else if d.Action == power.Wake {
					wakes++
				}
				if d.Action == power.Sleep && (len(host.VMs) > 0 || host.State != power.Awake || host.Settings.Mode == declared.PowerNone) {
					t.Fatalf("seed %d, step %d: %s is shut down: %+v", seed, step, d.Host, host)
				}
				if d.Action != power.Wake && host.State == power.Asleep && len(host.VMs) > 0 {
					t.Fatalf("seed %d, step %d: %s is not woken: %+v", seed, step, d.Host, host)
				}
				if d.Action == power.Wake && host.State != power.Asleep {
					t.Fatalf("seed %d, step %d: %s is woken: %+v", seed, step, d.Host, host)
				}
			}
			w.apply(decisions)
			if quorate && !w.quorate() {
				t.Fatalf("seed %d, step %d: quorum is lost: %+v", seed, step, decisions)
			}
			if after, _ := w.awake(); after < min(before, least) {
				t.Fatalf("seed %d, step %d: %d of %d hosts are awake, want %d", seed, step, after, before, least)
			}
		}
	}
	if sleeps < 1000 || wakes < 1000 {
		t.Errorf("only %d hosts were shut down and %d woken", sleeps, wakes)
	}
}
