// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

// burst leaves capacity for one VM on three hosts.
const burst = 20

// TestRandomFaults launches a burst while calls and tasks fail at random, hosts lose power,
// storages are inactive, quorum is lost, controllers are killed, NodeClaims are deleted, and
// other users take our VMIDs and addresses. In a third of the rounds, a host is removed.
// Afterwards all invariants must hold within MaxRounds.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	disturbances := 24
	if p.long {
		disturbances = 40
	}
	// Each round has twenty claims. More rounds in parallel would cause timeouts.
	slots := make(chan struct{}, 2)
	for i := range p.rounds {
		seed := p.seed + uint64(i)
		t.Run(fmt.Sprintf("CHAOS_SEED=%d", seed), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			t.Cleanup(func() { <-slots })
			newRound(t, seed).run(disturbances)
		})
	}
}

type round struct {
	t            *testing.T
	rand         *rand.Rand
	env          *lab.Env
	process      *lab.Process
	calls, tasks []place
	down         map[string]bool
	noQuorum     bool
	partitioned  bool
	hanging      map[string]bool
	inactive     map[storageOf]bool
	// removes: a host is removed in this round. removed is its name.
	removes bool
	removed string
	done    map[string]int
}

func newRound(t *testing.T, seed uint64) *round {
	t.Helper()
	r := newRoundIn(t, seed, lab.Options{Hosts: 3, HostURLs: true, Addresses: burst, DataDisk: true})
	r.process = r.env.StartProcess(lab.ProcessOptions{})
	return r
}

// newRoundIn returns a round without a Process. The seed determines the installation.
func newRoundIn(t *testing.T, seed uint64, o lab.Options) *round {
	t.Helper()
	o.Seed, o.Installation = seed, lab.Installations()[seed%4]
	calls, tasks, _ := recordPlaces(t, o.Installation)
	return &round{
		t: t, rand: rand.New(rand.NewPCG(seed, 3)), env: lab.New(t, o),
		calls: calls, tasks: tasks, removes: seed%3 == 0,
		down: map[string]bool{}, hanging: map[string]bool{}, inactive: map[storageOf]bool{}, done: map[string]int{},
	}
}

func (r *round) run(disturbances int) {
	r.t.Helper()
	for i := range burst {
		r.env.CreateClaim(fmt.Sprintf("pool-%d", i))
	}
	// Some are planned before the others, so another user can take the VMID of one.
	for i := range 3 {
		testenv.Must(r.t, r.process.RunStep(lab.StepPlan, fmt.Sprintf("pool-%d", i)))
	}
	if r.createForeignVM() {
		r.done["foreign VMs"]++
	}
	r.addRandomFaults()
	r.process.Run()
	r.toggleStorage()
	for i := range disturbances {
		if i == disturbances/2 {
			r.kill()
			if r.removes {
				r.removeHost()
				r.addRandomFaults()
			}
		}
		r.env.Clock.Sleep(time.Duration(2+r.rand.IntN(10)) * time.Second)
		r.disturbBy(r.kill, map[string]func() bool{"foreign VMs": r.createForeignVM, "addresses taken": r.takeAddress})
	}
	r.stopDisturbing()
	r.finish()
}

// finish waits until all invariants hold, deletes all NodeClaims, and waits again.
func (r *round) finish() {
	r.t.Helper()
	took, left := r.env.MustConverge(r.process, fmt.Sprintf("after the disturbances %v", r.done)), len(r.env.Claims())
	r.deleteAll()
	emptied := r.env.MustConverge(r.process, fmt.Sprintf("after deleting all claims, with %v", r.done))
	r.t.Logf("%s: %v; %d claims kept; converged after %s, empty after %s more", r.env.Installation, r.done, left, took, emptied)
}

func (r *round) deleteAll() {
	for _, claim := range r.env.Claims() {
		r.env.DeleteClaim(claim.Name)
	}
}

// addRandomFaults replaces all faults with a few random ones. Failures that end a launch are
// rarer, otherwise no claim would succeed.
func (r *round) addRandomFaults() {
	r.env.Sim.ClearFaults()
	for range 6 {
		call, failure := pick(r.rand, r.calls), pick(r.rand, callFailures)
		r.addFault(call, failure)
	}
	for range 2 {
		r.addFault(pick(r.rand, r.tasks), pick(r.rand, taskFailures))
	}
}

func (r *round) addFault(at place, failure failure) {
	f := failure.fault
	f.Method, f.Path, f.Task = at.method, at.template, at.task
	f.Probability = 0.02
	if failure.transient {
		f.Probability = 0.2
	}
	r.env.AddFault(f)
}

// disturbBy runs one of the disturbances of all rounds and the given ones, which report whether
// they had an effect.
func (r *round) disturbBy(kill func() bool, more map[string]func() bool) {
	disturbances := map[string]func() bool{
		"controllers killed": kill, "hosts toggled": r.toggleHost, "quorum toggled": r.toggleQuorum, "claims deleted": r.deleteOne,
		"guests powered off": r.powerOff, "tasks canceled": r.cancelTasks, "new faults": r.changeFaults, "load": r.addLoad,
		"partitions toggled": r.togglePartition, "hangs toggled": r.toggleHang, "storages toggled": r.toggleStorage,
	}
	maps.Copy(disturbances, more)
	r.disturbOnce(disturbances)
}

func (r *round) disturbOnce(disturbances map[string]func() bool) {
	name := pick(r.rand, slices.Sorted(maps.Keys(disturbances)))
	if disturbances[name]() {
		r.done[name]++
	}
}

func (r *round) cancelTasks() bool { r.env.CancelTasks(); return true }

func (r *round) changeFaults() bool { r.addRandomFaults(); return true }

// addLoad replaces all faults with what overloaded hosts do.
func (r *round) addLoad() bool {
	r.env.Sim.ClearFaults()
	for _, f := range pvesim.LoadFaults() {
		r.env.AddFault(f)
	}
	return true
}

func (r *round) kill() bool {
	r.process.Kill()
	r.process = r.env.StartProcess(lab.ProcessOptions{})
	r.process.Run()
	return true
}

func (r *round) toggleHost() bool {
	host := pick(r.rand, r.env.Hosts)
	if r.down[host] {
		delete(r.down, host)
		return r.env.Sim.HostUp(host) == nil
	}
	// One at a time: the last of three hosts has no quorum.
	if len(r.down) > 0 {
		return false
	}
	r.down[host] = true
	return r.env.Sim.HostDown(host, pick(r.rand, []string{"refused", "noroute", "timeout"})) == nil
}

func (r *round) toggleQuorum() bool {
	r.noQuorum = !r.noQuorum
	r.env.Sim.SetQuorum(!r.noQuorum)
	return true
}

func (r *round) deleteOne() bool {
	claims := r.env.Claims()
	if len(claims) > 0 {
		r.env.DeleteClaim(pick(r.rand, claims).Name)
	}
	return len(claims) > 0
}

// launching returns a random NodeClaim that is being launched on an online host with an active
// storage.
func (r *round) launching() (claim karpv1.NodeClaim, in instance.Intent, found bool) {
	claims := slices.DeleteFunc(r.env.Claims(), func(claim karpv1.NodeClaim) bool {
		return claim.Status.ProviderID == "" || r.process.Instances.VMs.IsLaunched(&claim)
	})
	if len(claims) == 0 || r.noQuorum {
		return claim, in, false
	}
	claim = pick(r.rand, claims)
	in, ok := instance.ReadIntent(&claim)
	return claim, in, ok && !r.down[in.Host] && in.Host != r.removed && !r.inactive[storageOf{in.Host, diskStorage}]
}

// takeAddress gives another user's guest the address of one of our claims.
func (r *round) takeAddress() bool {
	claim, in, ok := r.launching()
	if !ok {
		return false
	}
	r.env.Sim.ClearFaults()
	defer r.addRandomFaults()
	return r.env.TakeAddress(in.Host, &claim)
}

// createForeignVM creates a VM with the VMID of one of our claims, if it does not exist yet.
func (r *round) createForeignVM() bool {
	_, in, ok := r.launching()
	if !ok {
		return false
	}
	// The other user's calls are not under test.
	r.env.Sim.ClearFaults()
	defer r.addRandomFaults()
	return r.env.CreateForeignVM(in.Host, in.VMID)
}

func (r *round) powerOff() bool { return r.onVM(r.env.Sim.PowerOffGuest) }

// onVM calls do with the VMID of a random NodeClaim.
func (r *round) onVM(do func(vmid int) error) bool {
	claims := r.env.Claims()
	if len(claims) == 0 {
		return false
	}
	claim := pick(r.rand, claims)
	in, ok := instance.ReadIntent(&claim)
	return ok && do(in.VMID) == nil
}

// stopDisturbing ends all faults and outages.
func (r *round) stopDisturbing() {
	r.env.Sim.ClearFaults()
	r.env.Sim.SetQuorum(true)
	r.endOutages()
	for host := range r.down {
		testenv.Must(r.t, r.env.Sim.HostUp(host))
	}
	r.env.CancelTasks()
	testenv.Must(r.t, r.env.StartForeignGuests())
	if r.removed != "" {
		r.deleteClaimsOn(r.removed)
	}
}

func pick[T any](r *rand.Rand, list []T) T { return list[r.IntN(len(list))] }

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
				r.disturbOnce(map[string]func() bool{"controllers killed": r.kill, "claims deleted": r.deleteOne})
			}
			r.env.Sim.ClearFaults()
			r.finish()
		})
	}
}
