// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// TestHA launches and deletes the VMs of a NodePool in HA while calls to HA fail and controllers
// are killed. No resource and no rule may be left.
func TestHA(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	for n, on := range lab.Installations() {
		if !p.long && n != 0 && n != 3 {
			continue // one installation of each release
		}
		t.Run(subtestName(on), func(t *testing.T) {
			t.Parallel()
			r := &round{
				t: t, rand: rand.New(rand.NewPCG(p.seed, 5)), done: map[string]int{},
				env: lab.New(t, lab.Options{Hosts: 3, Installation: on, Seed: p.seed, HA: true}),
			}
			r.process = r.env.StartProcess(lab.ProcessOptions{Settings: longRetries})
			for _, path := range []string{"/cluster/ha/resources", "/cluster/ha/resources/{sid}", "/cluster/ha/rules", "/cluster/ha/rules/{rule}"} {
				r.env.AddFault(pvesim.Fault{Path: path, Probability: 0.1, DropBefore: true})
				r.env.AddFault(pvesim.Fault{Path: path, Probability: 0.1, DropAfter: true})
			}
			r.process.Run()
			created := 0
			for range 10 {
				for len(r.env.Claims()) < len(r.env.Hosts) {
					r.env.CreateClaim(fmt.Sprintf("pool-%d", created))
					created++
				}
				r.env.Clock.Sleep(time.Duration(5+r.rand.IntN(20)) * time.Second)
				r.disturbBy(map[string]func() bool{"controllers killed": r.kill, "claims deleted": r.deleteOne})
			}
			r.env.Sim.ClearFaults()
			took := r.env.MustConverge(r.process, fmt.Sprintf("after %v", r.done))
			for _, claim := range r.env.Claims() {
				r.env.DeleteClaim(claim.Name)
			}
			emptied := r.env.MustConverge(r.process, fmt.Sprintf("after deleting all claims, with %v", r.done))
			t.Logf("%s: %v; converged after %s, empty after %s more", on, r.done, took, emptied)
		})
	}
}
