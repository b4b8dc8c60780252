// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/chaos/lab"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// maxPods is the maximum number of pods, and of Nodes, of a round with Karpenter's controllers.
const maxPods = 8

// TestCoreRandomFaults runs Karpenter's own controllers (provisioning, lifecycle, termination,
// disruption, node repair) with ours while pods come and go, hosts lose power or are removed,
// storages are inactive, guests hang, calls and tasks fail, and controllers are killed. Afterwards all invariants must hold.
func TestCoreRandomFaults(t *testing.T) {
	t.Parallel()
	p := newPlan(t)
	disturbances := 6
	if p.long {
		disturbances = 40
	}
	// Most objects have no namespace: one round at a time.
	for i := range (p.rounds + 3) / 4 {
		seed := p.seed + uint64(i)
		t.Run(fmt.Sprintf("CHAOS_SEED=%d", seed), func(t *testing.T) {
			newCoreRound(t, seed).run(disturbances)
		})
	}
}

// coreRound is a round with Karpenter's controllers.
type coreRound struct {
	*round
	core *lab.CoreProcess
	pods *lab.Workload
}

func newCoreRound(t *testing.T, seed uint64) *coreRound {
	t.Helper()
	r := &coreRound{round: newRoundIn(t, seed, lab.Options{APIServer: testenv.APIServer(t), Hosts: 3, HostURLs: true, Addresses: 3 * maxPods, DataDisk: true})}
	r.env.CreatePool()
	r.core, r.pods = r.env.StartCore(), r.env.StartWorkload()
	r.env.AwaitPool()
	return r
}

func (r *coreRound) run(disturbances int) {
	r.t.Helper()
	r.pods.Scale(maxPods / 2)
	r.env.MustConvergeCore(r.core, r.pods, "before the disturbances")
	r.addLoad()
	r.toggleHost()
	r.toggleStorage()
	r.kill()
	for i := range disturbances {
		if r.removes && i == disturbances/2 {
			r.removeHost()
			r.addRandomFaults()
		}
		time.Sleep(time.Duration(200+r.rand.IntN(1000)) * time.Millisecond)
		r.disturbBy(r.kill, map[string]func() bool{"guests sick": r.sicken, "pods scaled": r.scale})
	}
	r.stopDisturbing()
	r.pods.Scale(maxPods)
	took := r.env.MustConvergeCore(r.core, r.pods, fmt.Sprintf("after the disturbances %v", r.done))
	// Without pods, core does not replace the claims.
	r.pods.Scale(0)
	r.env.MustConvergeCore(r.core, r.pods, "after deleting all pods")
	r.deleteAll()
	emptied := r.env.MustConvergeCore(r.core, r.pods, fmt.Sprintf("after deleting all claims, with %v", r.done))
	r.core.Kill()
	if left := len(r.env.Claims()); left > 0 {
		r.t.Errorf("%d claims are left", left)
	}
	r.t.Logf("%s: %v; converged after %s, empty after %s more", r.env.Installation, r.done, took.Round(time.Second), emptied.Round(time.Second))
}

// kill kills the controller and starts another one.
func (r *coreRound) kill() bool {
	r.core.Kill()
	r.core = r.env.StartCore()
	return true
}

// sicken makes the kubelet of a guest report that it is not ready, until the guest is replaced.
func (r *coreRound) sicken() bool {
	return r.onVM(func(vmid int) error { return r.env.Sim.SetGuestHealth(vmid, pvesim.HealthSick) })
}

func (r *coreRound) scale() bool {
	r.pods.Scale(r.rand.IntN(maxPods + 1))
	return true
}

// togglePartition separates one host from the others, or ends that. Its API then has no quorum.
func (r *round) togglePartition() bool {
	r.partitioned = !r.partitioned
	if !r.partitioned {
		r.env.Sim.Heal()
		return true
	}
	return r.env.Sim.Partition(pick(r.rand, r.env.Hosts)) == nil
}

// toggleHang makes the API of a host hang after the TLS handshake, or ends that.
func (r *round) toggleHang() bool {
	host := pick(r.rand, r.env.Hosts)
	r.hanging[host] = !r.hanging[host]
	return r.env.Sim.SetHang(host, r.hanging[host]) == nil
}

// storageOf is a storage on a host.
type storageOf struct{ host, storage string }

// Storages of the disks and of the boot drives of our VMs.
const (
	diskStorage  = "local-lvm"
	driveStorage = "local"
)

// toggleStorage makes a storage of a host inactive, as a late one after the power-on, or ends
// that.
func (r *round) toggleStorage() bool {
	s := storageOf{pick(r.rand, r.env.Hosts), pick(r.rand, []string{diskStorage, driveStorage})}
	r.inactive[s] = !r.inactive[s]
	return r.env.Sim.SetStorageActive(s.host, s.storage, !r.inactive[s]) == nil
}

// endOutages ends what the toggles above started.
func (r *round) endOutages() {
	r.env.Sim.Heal()
	for _, host := range r.env.Hosts {
		testenv.Must(r.t, r.env.Sim.SetHang(host, false))
		for _, storage := range []string{diskStorage, driveStorage} {
			testenv.Must(r.t, r.env.Sim.SetStorageActive(host, storage, true))
		}
	}
	clear(r.inactive)
}

// removeHost powers a host off for good and removes it from the cluster, which needs quorum. It
// ends all faults.
func (r *round) removeHost() {
	r.t.Helper()
	r.env.Sim.ClearFaults()
	r.env.Sim.Heal()
	r.env.Sim.SetQuorum(true)
	r.partitioned, r.noQuorum = false, false
	for host := range r.down {
		testenv.Must(r.t, r.env.Sim.HostUp(host))
	}
	clear(r.down)
	r.removed = pick(r.rand, r.env.Hosts)
	testenv.Must(r.t, r.env.Sim.HostDown(r.removed, "noroute"))
	testenv.Must(r.t, r.env.RemoveHost(r.removed))
	r.deleteClaimsOn(r.removed)
	r.done["hosts removed"]++
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
	r := &round{
		t: t, rand: rand.New(rand.NewPCG(1, 4)), env: lab.New(t, lab.Options{Hosts: 3, HostURLs: true, Addresses: 12, DataDisk: true}),
		down: map[string]bool{}, done: map[string]int{},
	}
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
