// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

const (
	// burst fills three hosts but for one VM.
	burst = 20
	// turmoil is how often a round is disturbed.
	turmoil = 40
)

// TestRandomTroublesAllAtOnce launches a burst while calls and tasks fail at random,
// hosts lose power, the quorum goes, controllers die, Claims are deleted and
// strangers take our VMIDs and addresses. Afterwards all must be in order within the bound.
func TestRandomTroublesAllAtOnce(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	// Each is a world with twenty claims: more at once would only show that the
	// machine is busy.
	turns := make(chan struct{}, 2)
	for i := range p.rounds {
		seed := p.seed + uint64(i)
		t.Run(fmt.Sprintf("CHAOS_SEED=%d", seed), func(t *testing.T) {
			t.Parallel()
			turns <- struct{}{}
			t.Cleanup(func() { <-turns })
			newRound(t, seed).run()
		})
	}
}

type round struct {
	t            *testing.T
	rand         *rand.Rand
	world        *lab.World
	process      *lab.Process
	calls, tasks []place
	down         map[string]bool
	noQuorum     bool
	done         map[string]int
}

func newRound(t *testing.T, seed uint64) *round {
	t.Helper()
	on := lab.Installations()[seed%4]
	calls, tasks, _ := record(t, on)
	r := &round{
		t: t, rand: rand.New(rand.NewPCG(seed, 3)),
		world: lab.New(t, lab.Options{Hosts: 3, Speed: speed, Seed: seed, Installation: on, Addresses: burst}),
		calls: calls, tasks: tasks, down: map[string]bool{}, done: map[string]int{},
	}
	r.process = r.world.Process(lab.Start{})
	return r
}

func (r *round) run() {
	r.t.Helper()
	for i := range burst {
		r.world.Claim(fmt.Sprintf("pool-%d", i))
	}
	// Some are planned before the others, and a stranger gets at the VMID of one.
	for i := range 3 {
		if err := r.process.Act(lab.ActPlan, fmt.Sprintf("pool-%d", i)); err != nil {
			r.t.Fatal(err)
		}
	}
	if r.stranger() {
		r.done["strangers"]++
	}
	r.troubles()
	r.process.Run()
	for range turmoil {
		r.world.Clock.Sleep(time.Duration(2+r.rand.IntN(10)) * time.Second)
		r.disturb()
	}
	r.heal()
	took, amiss := r.world.Converge(r.process)
	left := len(r.world.Claims())
	r.expectOrder("after the turmoil", took, amiss)
	for _, claim := range r.world.Claims() {
		r.world.Delete(claim.Name)
	}
	emptied, amiss := r.world.Converge(r.process)
	r.expectOrder("after the deletion of all claims", emptied, amiss)
	r.t.Logf("%s: %v; %d of %d claims kept; in order after %s, empty after %s more",
		r.world.Installation, r.done, left, burst, took, emptied)
}

func (r *round) expectOrder(when string, took lab.Settling, amiss []string) {
	r.t.Helper()
	if len(amiss) > 0 {
		r.t.Fatalf("%s, with %v, still amiss after %s on %s:\n%s", when, r.done, took, r.world.Installation, strings.Join(amiss, "\n"))
	}
}

// troubles installs a handful of random rules. Those that end a launch for good
// are rarer, or no claim would be left.
func (r *round) troubles() {
	r.world.Sim.ClearFaults()
	for range 6 {
		call, trouble := pick(r.rand, r.calls), pick(r.rand, callTroubles)
		r.rule(call, trouble)
	}
	for range 2 {
		r.rule(pick(r.rand, r.tasks), pick(r.rand, taskTroubles))
	}
}

func (r *round) rule(at place, trouble trouble) {
	f := trouble.fault
	f.Method, f.Path, f.Task = at.method, at.template, at.task
	f.Probability = 0.02
	if trouble.passing {
		f.Probability = 0.2
	}
	if _, err := r.world.Sim.AddFault(f); err != nil {
		r.t.Fatal(err)
	}
}

// disturb does one thing that should not happen.
func (r *round) disturb() {
	disturbances := map[string]func() bool{
		"controllers killed": r.kill, "hosts toggled": r.toggleHost, "quorum toggled": r.toggleQuorum, "claims deleted": r.deleteOne,
		"strangers": r.stranger, "addresses stolen": r.steal, "guests powered off": r.powerOff, "tasks cancelled": r.cancel, "new faults": r.renew,
	}
	name := pick(r.rand, slices.Sorted(maps.Keys(disturbances)))
	if disturbances[name]() {
		r.done[name]++
	}
}

func (r *round) kill() bool {
	r.process.Kill()
	r.process = r.world.Process(lab.Start{})
	r.process.Run()
	return true
}

func (r *round) toggleHost() bool {
	host := pick(r.rand, r.world.Hosts)
	if r.down[host] {
		delete(r.down, host)
		return r.world.Sim.HostUp(host) == nil
	}
	// One at a time: with two of three away nothing could be seen of the third.
	if len(r.down) > 0 {
		return false
	}
	r.down[host] = true
	return r.world.Sim.HostDown(host, pick(r.rand, []string{"refused", "noroute", "timeout"})) == nil
}

func (r *round) toggleQuorum() bool {
	r.noQuorum = !r.noQuorum
	r.world.Sim.SetQuorum(!r.noQuorum)
	return true
}

func (r *round) deleteOne() bool {
	claims := r.world.Claims()
	if len(claims) == 0 {
		return false
	}
	r.world.Delete(pick(r.rand, claims).Name)
	return true
}

// launching is one of the Claims that are being launched on Hosts that are up.
func (r *round) launching() (claim karpv1.NodeClaim, in instance.Intent, found bool) {
	claims := slices.DeleteFunc(r.world.Claims(), func(claim karpv1.NodeClaim) bool {
		return claim.Annotations[v1alpha1.AnnotationLaunchIntent] == "" || claim.Annotations[v1alpha1.AnnotationLaunchCompleted] != ""
	})
	if len(claims) == 0 || r.noQuorum {
		return claim, in, false
	}
	claim = pick(r.rand, claims)
	in, ok, err := instance.ReadIntent(&claim)
	return claim, in, err == nil && ok && !r.down[in.Host]
}

// steal gives somebody else's guest the address of one of our Claims.
func (r *round) steal() bool {
	claim, in, ok := r.launching()
	if !ok {
		return false
	}
	r.world.Sim.ClearFaults()
	defer r.troubles()
	return r.world.Steal(in.Host, &claim)
}

// stranger makes a VM with the VMID of one of our Claims, if it is quick enough.
func (r *round) stranger() bool {
	_, in, ok := r.launching()
	if !ok {
		return false
	}
	// The stranger's calls are not what is tried here.
	r.world.Sim.ClearFaults()
	defer r.troubles()
	return r.world.Stranger(in.Host, in.VMID)
}

func (r *round) powerOff() bool {
	claims := r.world.Claims()
	if len(claims) == 0 {
		return false
	}
	claim := pick(r.rand, claims)
	in, ok, err := instance.ReadIntent(&claim)
	return err == nil && ok && r.world.Sim.PowerOffGuest(in.VMID) == nil
}

func (r *round) cancel() bool {
	r.world.CancelTasks()
	return true
}

func (r *round) renew() bool {
	r.troubles()
	return true
}

// heal ends all troubles.
func (r *round) heal() {
	r.world.Sim.ClearFaults()
	r.world.Sim.SetQuorum(true)
	for host := range r.down {
		if err := r.world.Sim.HostUp(host); err != nil {
			r.t.Fatal(err)
		}
	}
	r.world.CancelTasks()
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }
