// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

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

func TestPlan(t *testing.T) {
	t.Parallel()
	// The VMs of a NodePool are counted after a restart.
	testenv.With().Subtest(t, "restored_reservation", func(w *testenv.Env, p *testenv.Process) {
		claim, in := launchVM(w, p)
		next := w.StartProcess()
		next.Instances.Planner.RestoreReservation(*claim)
		w.Expect(next.Inventory.View().NodePoolVMs(in.Region, in.Host, "pool")).To(Equal(1))
		next.Instances.Planner.Release(string(claim.UID))
		w.Expect(next.Inventory.View().NodePoolVMs(in.Region, in.Host, "pool")).To(BeZero())
		p.Delete(claim)
	})
	// A region without free VMIDs is not offered for a while.
	testenv.With(testenv.Hosts(2), testenv.Settings(func(s *instance.Settings) {
		s.VMIDs = placement.Range{From: 20000, To: 20001}
	})).Subtest(t, "no_free_VMID", func(w *testenv.Env, p *testenv.Process) {
		p.Planned("pool-a", w.NodeClass)
		p.Planned("pool-b", w.NodeClass)
		w.Expect(planOnce(w, p, "pool-c")).To(MatchError(placement.ErrRangeFull))
		for _, it := range p.Types.List(w.NodeClass, "") {
			w.Expect(it.Offerings.Available()).To(BeEmpty(), it.Name)
		}
	})
}

// A parked claim that fits on a sleeping host is planned there, and the host is woken for its VM.
// A claim that fits nowhere wakes no host, also if the hosts that are awake are full.
func TestUnparkOnSleepingHost(t *testing.T) {
	t.Parallel()
	for name, fits := range map[string]bool{"fits": true, "fits_nowhere": false} {
		settings, err := declared.ParseSettings([]byte(`{"*": {"pve2": {"powermanagement": "Enabled"}}}`))
		testenv.Must(t, err)
		testenv.With(testenv.Hosts(2), testenv.NoPolling(), testenv.HostSettings(settings)).Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			fill(w, p, "pve1")
			waiting, _ := parked(w, p, w.Claim("pool-waiting", w.NodeClass, testenv.OnHost("pve2")))
			p.Inventory.SetSleeping(map[observed.HostName]declared.Sleep{
				{Region: testenv.Region, Host: "pve2"}: {State: declared.Asleep, Known: p.Inventory.View().Snapshots[testenv.Region].KnownHost("pve2")},
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

// The controller is restarted with 50 pending claims: one with the only device, one with a machine and its
// address. Nothing is given out twice, neither to them nor to a claim that is planned while they wait.
func TestRestartPendingClaims(t *testing.T) {
	const pending = 50
	testenv.With(testenv.Hosts(2), testenv.NoPolling(), testenv.Scenario(withHardware, func(s *pvesim.Scenario) {
		for i := range s.Hosts {
			s.Hosts[i].Cores, s.Hosts[i].Memory = 64, 256*pvesim.GiB
		}
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		setPool(w, v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.0.100-10.0.0.160"}, Gateway: "10.0.0.1"})
		device, machine := w.NodeClass.DeepCopy(), w.NodeClass.DeepCopy()
		device.Name, machine.Name = "device", "machine"
		device.Spec.Hardware = &v1alpha1.Hardware{PCI: []v1alpha1.PCIDevice{{Mapping: "gpu"}}}
		machine.Spec.Machines = []v1alpha1.Machine{{
			Name: "db-1", Zone: "pve1", Addresses: []v1alpha1.MachineAddresses{{Interface: "net0", Address4: "10.0.0.11"}},
		}}
		classes := append([]*v1alpha1.ProxmoxNodeClass{device, machine}, slices.Repeat([]*v1alpha1.ProxmoxNodeClass{w.NodeClass}, pending-1)...)
		var claims []*karpv1.NodeClaim
		before := map[string]instance.Intent{}
		for i, class := range classes[:pending] {
			claims = append(claims, p.Planned(fmt.Sprintf("pool-%d", i), class))
			before[claims[i].Name] = w.Intent(claims[i])
		}

		p = w.StartProcess()
		for name, class := range map[string]*v1alpha1.ProxmoxNodeClass{"late-device": device, "late-machine": machine} {
			_, err := p.Instances.Planner.Plan(w.Context(), w.Claim(name, class), class, false)
			w.Expect(err).To(HaveOccurred(), name)
		}
		late := p.Planned("late", w.NodeClass)
		vmids, addresses := map[int]string{}, map[string]string{}
		for i, claim := range append(claims, late) {
			p.MustLaunch(w.Stored(claim), classes[i])
			in := w.Intent(claim)
			if planned, ok := before[claim.Name]; ok {
				w.Expect(in).To(And(HaveField("VMID", planned.VMID), HaveField("Host", planned.Host), HaveField("Devices", planned.Devices),
					HaveField("Machine", planned.Machine), HaveField("Network.Addresses()", planned.Network.Addresses())))
			}
			w.Expect(vmids).NotTo(HaveKey(in.VMID))
			vmids[in.VMID] = claim.Name
			for _, address := range in.Network.Addresses() {
				w.Expect(addresses).NotTo(HaveKey(address.String()))
				addresses[address.String()] = claim.Name
			}
		}
		w.Expect(w.VMs()).To(HaveLen(pending + 1))
	})
}
