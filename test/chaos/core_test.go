// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos_test

import (
	"fmt"
	"os"
	"testing"
	"time"

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
		r.disturbBy(map[string]func() bool{
			"controllers killed": r.kill, "hosts toggled": r.toggleHost, "quorum toggled": r.toggleQuorum, "claims deleted": r.deleteOne,
			"guests powered off": r.powerOff, "guests sick": r.sicken, "pods scaled": r.scale, "tasks canceled": r.cancelTasks,
			"new faults": r.changeFaults, "load": r.addLoad,
			"partitions toggled": r.togglePartition, "hangs toggled": r.toggleHang, "storages toggled": r.toggleStorage,
		})
	}
	r.stopDisturbing()
	r.pods.Scale(maxPods)
	took := r.env.MustConvergeCore(r.core, r.pods, fmt.Sprintf("after the disturbances %v", r.done))
	// Without pods, core does not replace the claims.
	r.pods.Scale(0)
	r.env.MustConvergeCore(r.core, r.pods, "after deleting all pods")
	for _, claim := range r.env.Claims() {
		r.env.DeleteClaim(claim.Name)
	}
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
	claims := r.env.Claims()
	if len(claims) == 0 {
		return false
	}
	claim := pick(r.rand, claims)
	in, ok := instance.ReadIntent(&claim)
	return ok && r.env.Sim.SetGuestHealth(in.VMID, pvesim.HealthSick) == nil
}

func (r *coreRound) scale() bool {
	r.pods.Scale(r.rand.IntN(maxPods + 1))
	return true
}
