// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
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
			newRandomRound(t, seed).run(disturbances)
		})
	}
}

type round struct {
	*lab.Outages
	env          *lab.Env
	process      *lab.Process
	calls, tasks []place
	// removes: a host is removed in this round. removed is its name.
	removes bool
	removed string
}

// newRound returns a round with three hosts, without a Process.
func newRound(t *testing.T, seed, stream uint64, o lab.Options) *round {
	t.Helper()
	o.Hosts, o.Seed = 3, seed
	env := lab.New(t, o)
	random := rand.New(rand.NewPCG(seed, stream))
	return &round{env: env, Outages: lab.NewOutages(lab.Outages{T: t, Sim: env.Sim, Rand: random, Hosts: env.Hosts, AddFault: env.AddFault})}
}

// newRandomRound returns a round whose installation depends on the seed.
func newRandomRound(t *testing.T, seed uint64) *round {
	t.Helper()
	on := lab.Installations()[seed%4]
	r := newRound(t, seed, 3, lab.Options{Installation: on, HostURLs: true, Addresses: burst, DataDisk: true})
	r.calls, r.tasks, _ = recordPlaces(t, on)
	r.removes = seed%3 == 0
	r.process = r.env.StartProcess(lab.ProcessOptions{})
	return r
}

func (r *round) run(disturbances int) {
	r.T.Helper()
	for i := range burst {
		r.env.CreateClaim(fmt.Sprintf("pool-%d", i))
	}
	// Some are planned before the others, so another user can take the VMID of one.
	for i := range 3 {
		testenv.Must(r.T, r.process.RunStep(lab.StepPlan, fmt.Sprintf("pool-%d", i)))
	}
	r.createForeignVM()
	r.addRandomFaults()
	r.process.Run()
	r.ToggleStorage()
	for i := range disturbances {
		if i == disturbances/2 {
			r.kill()
			if r.removes {
				r.removeHost()
				r.addRandomFaults()
			}
		}
		r.env.Clock.Sleep(time.Duration(2+r.Rand.IntN(10)) * time.Second)
		r.DisturbWithOutages(map[string]func(){
			"controllers killed": r.kill, "claims deleted": r.deleteOne, "guests powered off": r.powerOff, "new faults": r.addRandomFaults,
			"tasks canceled": r.env.CancelTasks, "foreign VMs": r.createForeignVM, "addresses taken": r.takeAddress,
		})
	}
	r.stopDisturbing()
	r.finish()
}

// finish waits until all invariants hold, deletes all NodeClaims, and waits again.
func (r *round) finish() {
	r.T.Helper()
	r.env.MustConverge(r.process, fmt.Sprintf("after the disturbances %v", r.Done))
	r.deleteAll()
	r.env.MustConverge(r.process, fmt.Sprintf("after deleting all claims, with %v", r.Done))
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
		call, failure := lab.Pick(r.Rand, r.calls), lab.Pick(r.Rand, callFailures)
		r.addFault(call, failure)
	}
	for range 2 {
		r.addFault(lab.Pick(r.Rand, r.tasks), lab.Pick(r.Rand, taskFailures))
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

func (r *round) kill() {
	r.process.Kill()
	r.process = r.env.StartProcess(lab.ProcessOptions{})
	r.process.Run()
}

func (r *round) deleteOne() {
	if claims := r.env.Claims(); len(claims) > 0 {
		r.env.DeleteClaim(lab.Pick(r.Rand, claims).Name)
	}
}

// launching returns a random NodeClaim that is being launched on an online host with an active
// storage.
func (r *round) launching() (claim karpv1.NodeClaim, in instance.Intent, found bool) {
	claims := slices.DeleteFunc(r.env.Claims(), func(claim karpv1.NodeClaim) bool {
		return claim.Status.ProviderID == "" || r.process.Instances.VMs.IsLaunched(&claim)
	})
	if len(claims) == 0 {
		return claim, in, false
	}
	claim = lab.Pick(r.Rand, claims)
	in, ok := instance.ReadIntent(&claim)
	return claim, in, ok && in.Host != r.removed && r.CanLaunch(in.Host)
}

// takeAddress gives another user's guest the address of one of our claims. The other user's calls
// are not under test.
func (r *round) takeAddress() {
	if claim, in, ok := r.launching(); ok {
		r.env.Sim.ClearFaults()
		r.env.TakeAddress(in.Host, &claim)
		r.addRandomFaults()
	}
}

// createForeignVM creates a VM with the VMID of one of our claims, if it does not exist yet.
func (r *round) createForeignVM() {
	if _, in, ok := r.launching(); ok {
		r.env.Sim.ClearFaults()
		r.env.CreateForeignVM(in.Host, in.VMID)
		r.addRandomFaults()
	}
}

// powerOff powers the VM of a random NodeClaim off.
func (r *round) powerOff() {
	if claims := r.env.Claims(); len(claims) > 0 {
		claim := lab.Pick(r.Rand, claims)
		in, _ := instance.ReadIntent(&claim)
		_ = r.env.Sim.PowerOffGuest(in.VMID) // it may not exist yet
	}
}

// stopDisturbing ends all faults and outages.
func (r *round) stopDisturbing() {
	r.EndOutages()
	r.env.CancelTasks()
	testenv.Must(r.T, r.env.StartForeignGuests())
	if r.removed != "" {
		r.deleteClaimsOn(r.removed)
	}
}

// removeHost powers a host off for good and removes it from the cluster, which needs quorum. It
// ends all faults and outages.
func (r *round) removeHost() {
	r.T.Helper()
	r.EndOutages()
	r.removed = lab.Pick(r.Rand, r.env.Hosts)
	testenv.Must(r.T, r.env.Sim.HostDown(r.removed, "noroute"))
	testenv.Must(r.T, r.env.RemoveHost(r.removed))
	r.Hosts = r.env.Hosts
	r.deleteClaimsOn(r.removed)
	r.Done["hosts removed"]++
}

// deleteClaimsOn deletes the NodeClaims on a host, as core does if their Nodes are not ready.
func (r *round) deleteClaimsOn(host string) {
	for _, claim := range r.env.Claims() {
		if claim.Labels[corev1.LabelTopologyZone] == host {
			r.env.DeleteClaim(claim.Name)
		}
	}
}

// TestHostRemoved removes a host with some of the claims from the cluster. These are finished,
// the others are kept.
func TestHostRemoved(t *testing.T) {
	t.Parallel()
	r := newRound(t, 0, 4, lab.Options{HostURLs: true, Addresses: 12, DataDisk: true})
	r.process = r.env.StartProcess(lab.ProcessOptions{Settings: func(s *instance.Settings) {
		longRetries(s)
		s.HostRemovedAfter = 5 * time.Minute
	}})
	for i := range 6 {
		r.env.CreateClaim(fmt.Sprintf("pool-%d", i))
	}
	r.process.Run()
	r.env.MustConverge(r.process, "after the launches")
	before := locations(r.env.Claims())
	r.removeHost()
	r.env.MustConverge(r.process, "after removing host "+r.removed)
	after := locations(r.env.Claims())
	for name, host := range before {
		if _, kept := after[name]; kept != (host.host != r.removed) || (kept && after[name] != host) {
			t.Errorf("claim %s of %v is now %v; host %s was removed", name, host, after[name], r.removed)
		}
	}
	if len(after) == len(before) || len(after) == 0 {
		t.Errorf("%d of %d claims are left", len(after), len(before))
	}
	r.deleteAll()
	r.env.MustConverge(r.process, "after deleting all claims")
}

// location is where the VM of a claim is.
type location struct{ host, providerID string }

// locations returns the locations of the VMs of claims by name.
func locations(claims []karpv1.NodeClaim) map[string]location {
	out := map[string]location{}
	for _, claim := range claims {
		out[claim.Name] = location{claim.Labels[corev1.LabelTopologyZone], claim.Status.ProviderID}
	}
	return out
}

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
			r := newRound(t, p.seed, 5, lab.Options{Installation: on, HA: true})
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
				r.env.Clock.Sleep(time.Duration(5+r.Rand.IntN(20)) * time.Second)
				r.Disturb(map[string]func(){"controllers killed": r.kill, "claims deleted": r.deleteOne})
			}
			r.env.Sim.ClearFaults()
			r.finish()
		})
	}
}
