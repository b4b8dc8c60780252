// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestPlanInsufficientCapacity(t *testing.T) {
	testenv.With(testenv.Hosts(2)).Test(t, func(w *testenv.Env, p *testenv.Process) {
		// Two hosts with 16 CPUs, of which a guest has two each.
		for i := range 14 {
			p.Planned(fmt.Sprintf("pool-%d", i), w.NodeClass)
		}
		w.Expect(planOnce(w, p, "pool-more")).To(And(BeAssignableToTypeOf(&instance.InsufficientCapacityError{}),
			MatchError(And(ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU")))))
	})
}

// A plan that waits until another one has read all claims ends with its context.
func TestPlanCanceledWhileRestored(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.NewFake(t)
		first, second := w.Claim("pool-a", w.NodeClass), w.Claim("pool-b", w.NodeClass)
		w.Kube = interceptor.NewClient(w.Kube.(client.WithWatch), interceptor.Funcs{
			List: func(ctx context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
				<-ctx.Done()
				return ctx.Err()
			},
		})
		p := w.StartProcess(testenv.NoPolling())
		testenv.Go(t, func(ctx context.Context) error {
			_, err := p.Instances.Planner.Plan(ctx, first, w.NodeClass, false)
			return err
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Instances.Planner.Plan(ctx, second, w.NodeClass, false)
		w.Expect(err).To(And(MatchError(context.DeadlineExceeded), MatchError(ContainSubstring("waiting for the reservations"))))
	})
}

// The VMs of a NodePool are counted after a restart.
func TestRestoreReservation(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Launched("pool-abc", w.NodeClass)
		in := w.Intent(claim)
		next := w.StartProcess()
		next.Instances.Planner.RestoreReservation(*claim)
		w.Expect(next.Inventory.View().NodePoolVMs(in.Region, in.Host, "pool")).To(Equal(1))
		next.Instances.Planner.Release(string(claim.UID))
		w.Expect(next.Inventory.View().NodePoolVMs(in.Region, in.Host, "pool")).To(BeZero())
		p.Delete(claim)
	})
}

// A region without free VMIDs is not offered for a while.
func TestPlanNoFreeVMID(t *testing.T) {
	testenv.With(testenv.Hosts(2), testenv.Settings(func(s *instance.Settings) {
		s.VMIDs = placement.Range{From: 20000, To: 20001}
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		p.Planned("pool-a", w.NodeClass)
		p.Planned("pool-b", w.NodeClass)
		w.Expect(planOnce(w, p, "pool-c")).To(MatchError(placement.ErrRangeFull))
		for _, it := range p.Types.List(w.NodeClass, "") {
			w.Expect(it.Offerings.Available()).To(BeEmpty(), it.Name)
		}
	})
}

// A VM that was planned before a restart, and is not in a Snapshot yet, has its capacity.
func TestPlanAfterRestart(t *testing.T) {
	testenv.With(testenv.Cores(4)).Test(t, func(w *testenv.Env, p *testenv.Process) {
		claim := p.Planned("pool-first", w.NodeClass)

		p = w.StartProcess(testenv.NoPolling())
		w.Expect(planOnce(w, p, "pool-second")).To(BeAssignableToTypeOf(&instance.InsufficientCapacityError{}), "the capacity of the first VM was planned twice")

		w.Expect(p.Launch(claim, w.NodeClass)).To(Succeed())
		p.DeleteAll(claim)
	})
}

// A parked claim that fits on a sleeping host is planned there, and the host is woken for its VM.
// A claim that fits nowhere wakes no host, also if the hosts that are awake are full.
func TestUnparkOnSleepingHost(t *testing.T) {
	t.Parallel()
	for name, fits := range map[string]bool{"fits": true, "fits_nowhere": false} {
		settings, err := inventory.ParseSettings([]byte(`{"*": {"pve2": {"powermanagement": "Enabled"}}}`))
		testenv.Must(t, err)
		testenv.With(testenv.Hosts(2), testenv.NoPolling(), testenv.HostSettings(settings)).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			fill(w, p, "pve1")
			waiting, _ := parked(w, p, w.Claim("pool-waiting", w.NodeClass, testenv.OnHost("pve2")))
			p.Inventory.SetSleeping(map[inventory.HostName]inventory.Sleep{
				{Region: testenv.Region, Host: "pve2"}: {State: inventory.Asleep, Known: p.Inventory.View().Snapshots[testenv.Region].KnownHost("pve2")},
			})
			w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
			w.Clock.Advance(time.Minute)
			p.Refresh()
			w.Expect(decide(w, p)).To(Equal(power.Decision{Host: "pve2", Action: power.Keep}), "it only waits")

			if !fits {
				w.NodeClass.Spec.MetadataOptions.Storage = "local-lvm" // which has no ISOs
				w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked))
				w.Expect(decide(w, p)).To(Equal(power.Decision{Host: "pve2", Action: power.Keep}))
				return
			}
			w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrHostAsleep))
			w.Expect(w.Intent(w.Stored(waiting))).To(And(HaveField("Host", "pve2"), HaveField("Parked", false)))
			w.Expect(decide(w, p)).To(And(HaveField("Action", power.Wake), HaveField("Reasons", ConsistOf(HaveField("Type", power.InUse)))))
		})
	}
}

// decide returns the decision about pve2.
func decide(w *testenv.Env, p *testenv.Process) power.Decision {
	w.T.Helper()
	decisions := power.Decide(power.NewRegion(power.Source{
		View: p.Inventory.View(), Region: testenv.Region, KubeCluster: w.KubeCluster, Now: time.Now(), IdleSince: func(string) time.Time { return time.Now() },
	}))
	w.Expect(decisions).To(HaveLen(1))
	return decisions[0]
}
