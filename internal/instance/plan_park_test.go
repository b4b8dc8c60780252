// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// parked returns a claim that waits for capacity, and its intent.
func parked(w *testenv.Env, p *testenv.Process, claim *karpv1.NodeClaim) (*karpv1.NodeClaim, instance.Intent) {
	w.T.Helper()
	in, err := p.Instances.Planner.Park(w.Context(), claim, w.NodeClass)
	w.Expect(err).NotTo(HaveOccurred())
	claim = w.SetPlanned(claim, w.NodeClass, in)
	return claim, w.Intent(claim)
}

func TestUnpark(t *testing.T) {
	t.Parallel()
	// A claim of a static NodePool waits with a reserved VMID, and is launched when there is
	// capacity.
	testenv.With().Subtest(t, "with_capacity", func(w *testenv.Env, p *testenv.Process) {
		full := fill(w, p, "pve1")
		waiting := w.Claim("pool-waiting", w.NodeClass)
		_, err := p.Instances.Planner.Plan(w.Context(), waiting, w.NodeClass, false)
		w.Expect(err).To(BeAssignableToTypeOf(&instance.InsufficientCapacityError{}))
		waiting, in := parked(w, p, waiting)
		w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked))
		w.Expect(w.VMs()).To(BeEmpty(), "no request to Proxmox")

		// A restarted controller reserves the capacity of planned claims, but none for a
		// parked one.
		next := w.StartProcess()
		w.Expect(next.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked), "the other VMs do not exist yet")
		next.Delete(full[0])
		w.NodeClass.Spec.Tags = []string{"changed"}
		w.Expect(next.Launch(waiting, w.NodeClass)).To(Succeed())
		launched := w.Stored(waiting)
		w.Expect(launched.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationNodeClassHash, w.NodeClass.Hash()))
		w.Expect(w.Intent(launched)).To(And(HaveField("Parked", false), HaveField("VMID", in.VMID)))
		next.Delete(launched)
	})
	// A claim of a static NodePool does not use the reserve. It waits until another VM is deleted.
	testenv.With(testenv.Hosts(2)).Subtest(t, "reserve", func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
		// Two hosts with 16 CPUs, of which a guest has two each: a host can hold eight.
		var full []*karpv1.NodeClaim
		for i := range 6 {
			full = append(full, p.Planned(fmt.Sprintf("pool-%d", i), w.NodeClass))
		}
		waiting := w.Claim("pool-waiting", w.NodeClass)
		_, err := p.Instances.Planner.Plan(w.Context(), waiting, w.NodeClass, false)
		w.Expect(err).To(MatchError(ContainSubstring("insufficient reserve")))
		waiting, _ = parked(w, p, waiting)
		w.Expect(p.Launch(waiting, w.NodeClass)).To(And(MatchError(instance.ErrParked), MatchError(ContainSubstring("insufficient reserve"))))
		p.Delete(full[0])
		w.Expect(p.Launch(waiting, w.NodeClass)).To(Succeed())
	})
	// The reservations of all claims are restored while parked ones are planned.
	testenv.With(testenv.Hosts(4), testenv.NoPolling()).Subtest(t, "while_restored", func(w *testenv.Env, p *testenv.Process) {
		for i := range 20 {
			waiting, in := parked(w, p, w.Claim(fmt.Sprintf("pool-%d", i), w.NodeClass))
			ctx, cancel := context.WithCancel(w.Context())
			reservation := in.Reservation(waiting)
			var restoring sync.WaitGroup
			restoring.Go(func() {
				for ctx.Err() == nil {
					p.Inventory.Ledger().Restore(reservation)
				}
			})
			planned, err := p.Instances.Planner.Unpark(w.Context(), waiting, w.NodeClass, in)
			cancel()
			restoring.Wait()
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(planned).To(And(HaveField("VMID", in.VMID), HaveField("Parked", false), HaveField("ISOStorage", Not(BeEmpty()))))
			w.Expect(p.Inventory.View().Reservations[string(waiting.UID)].CPUs).To(Equal(planned.Cores))
		}
	})
	testenv.With(testenv.NoPolling(), testenv.Settings(func(s *instance.Settings) {
		s.StaticCapacityTimeout = time.Minute
	})).Subtest(t, "timeout", func(w *testenv.Env, p *testenv.Process) {
		fill(w, p, "pve1")
		waiting, _ := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
		w.Clock.Advance(time.Minute)
		w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked))
		w.Clock.Advance(time.Nanosecond)
		w.Expect(p.Launch(waiting, w.NodeClass)).To(And(testenv.HaveReason(v1alpha1.EventInsufficientCapacity), MatchError(ContainSubstring("CPU"))))
		w.Expect(p.Instances.Deleter.Delete(w.Context(), waiting)).To(BeTrue())
	})
	// The providerID is known to core, so the VMID cannot change.
	testenv.With().Subtest(t, "VMID_taken", func(w *testenv.Env, p *testenv.Process) {
		waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
		w.CloneByHand("pve1", in.VMID, "foreign")
		w.Expect(w.StartProcess().Launch(waiting, w.NodeClass)).To(testenv.HaveReason(v1alpha1.EventVMIDTaken))
	})
	// A claim waits for a Host in maintenance only while no other one has capacity.
	twoHosts.Subtest(t, "unusable_host", func(w *testenv.Env, p *testenv.Process) {
		full := map[string][]*karpv1.NodeClaim{"pve1": fill(w, p, "pve1"), "pve2": fill(w, p, "pve2")}
		waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
		w.Expect(w.Sim.SetMaintenance(in.Host, true)).To(Succeed())
		p.Refresh()
		w.Expect(p.Launch(waiting, w.NodeClass)).To(And(MatchError(instance.ErrParked), MatchError(ContainSubstring("maintenance"))))

		other := testenv.OtherHost(in.Host)
		p.Delete(full[other][0])
		w.Expect(p.Launch(waiting, w.NodeClass)).To(And(
			testenv.HaveReason(v1alpha1.EventInsufficientCapacity), MatchError(ContainSubstring("host "+other+" has capacity"))))
		w.Expect(w.Intent(p.Planned("pool-recreated", w.NodeClass)).Host).To(Equal(other))
	})
}

// The capacity of a parked claim could not be written, or the response was lost.
func TestUnparkFailedWrite(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err     error
		applied bool
	}{
		"not_sent":      {errors.New("connection refused"), false},
		"lost_response": {errors.New("connection reset by peer"), true},
		"timeout":       {apierrors.NewTimeoutError("request timed out", 1), true},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.NewFake(t)
			var next error // of the next patch
			kube := interceptor.NewClient(w.Kube.(client.WithWatch), interceptor.Funcs{SubResourcePatch: func(
				ctx context.Context, c client.Client, name string, o client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
			) error {
				err := next
				next = nil
				if err != nil && !test.applied {
					return err
				}
				return errors.Join(err, c.SubResource(name).Patch(ctx, o, patch, options...))
			}})
			p := w.StartProcess(testenv.Kube(kube))
			waiting, _ := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
			next = test.err
			err := p.Launch(waiting, w.NodeClass)
			if !test.applied {
				w.Expect(err).To(MatchError(test.err))
				w.Expect(w.VMs()).To(BeEmpty(), "no VM of the parked intent")
			}
			p.MustLaunch(waiting, w.NodeClass)
			w.Expect(w.Intent(w.Stored(waiting)).ISOStorage).NotTo(BeEmpty())
			w.Expect(w.VMs()).To(HaveLen(1))
		})
	}
}

func TestPark(t *testing.T) {
	t.Parallel()
	// The class is Ready on another host, which the NodePool does not allow.
	testenv.With(testenv.Hosts(2)).Subtest(t, "on_unusable_host", func(w *testenv.Env, p *testenv.Process) {
		selected := w.NodeClass.Status.SelectedZones
		w.NodeClass.Status.SelectedZones = selected[1:]
		w.NodeClass.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: testenv.Region + "/pve1", Reason: "bridge vmbr7 is not there"}}
		waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass, testenv.OnHost("pve1")))
		w.Expect(in.Host).To(Equal("pve1"))
		w.Expect(in.InstanceType).To(Equal("t1.2VCPU-6GB"))
		// The reason is in the status of the class.
		w.Expect(p.Launch(waiting, w.NodeClass)).To(And(MatchError(instance.ErrParked), MatchError(ContainSubstring("bridge vmbr7"))))

		w.NodeClass.Status.SelectedZones, w.NodeClass.Status.UnusableZones = selected, nil
		w.Expect(p.Launch(waiting, w.NodeClass)).To(Succeed())
		launched := w.Stored(waiting)
		w.Expect(w.Intent(launched)).To(And(HaveField("VMID", in.VMID), HaveField("TemplateID", 9000), HaveField("Storage", Not(BeEmpty()))))
		p.DeleteAll(launched)
	})
	// Claims that nothing meets are parked as well: otherwise core would recreate them
	// without delay.
	testenv.With().Subtest(t, "unplaceable", func(w *testenv.Env, p *testenv.Process) {
		waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass, testenv.OnHost("pve-typo")))
		w.Expect(in.InstanceType).To(BeEmpty())
		w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(And(ContainSubstring("zone In [pve-typo]"), ContainSubstring(instance.ErrParked.Error()))))
		w.Expect(w.StartProcess().Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked), "also after a restart")
		late := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.StaticCapacityTimeout = time.Nanosecond }))
		w.Expect(late.Launch(waiting, w.NodeClass)).To(testenv.HaveReason(v1alpha1.EventInsufficientCapacity))
		p.DeleteAll(waiting)
	})
	// Claims of a static NodePool are parked while their hosts are avoided after a failure.
	testenv.With().Subtest(t, "on_avoided_host", func(w *testenv.Env, p *testenv.Process) {
		p.Types.MarkUnavailable(instancetype.OfferingSelector{Zone: placement.Zone{Region: testenv.Region, Host: "pve1"}}, "no bridge", time.Hour)
		claim := w.Claim("pool-abc", w.NodeClass)
		_, err := p.Instances.Planner.Plan(w.Context(), claim, w.NodeClass, false)
		w.Expect(err).To(HaveOccurred())
		claim, _ = parked(w, p, claim)
		w.Expect(p.Launch(claim, w.NodeClass)).To(And(MatchError(instance.ErrParked), MatchError(ContainSubstring("no bridge"))))
	})
	// A claim waits for a Host that can get capacity, also if another one has fewer VMs.
	twoHosts.Subtest(t, "on_usable_host", func(w *testenv.Env, p *testenv.Process) {
		fill(w, p, "pve1")
		w.Expect(w.Sim.SetMaintenance("pve2", true)).To(Succeed())
		p.Refresh()
		_, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
		w.Expect(in.Host).To(Equal("pve1"))
	})
}

// A claim stays parked for other reasons, too.
func TestUnparkWaits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1alpha1.ProxmoxNodeClass){
		"no_ISO_storage":   func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "local-lvm" },
		"missing_template": func(c *v1alpha1.ProxmoxNodeClass) { c.Status.SelectedZones = []string{testenv.Region + "/pve1/9999"} },
	} {
		testenv.With().Subtest(t, name, func(w *testenv.Env, p *testenv.Process) {
			waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
			original := w.NodeClass.DeepCopy()
			change(w.NodeClass)
			w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked))
			w.Expect(p.Inventory.View().IsVMIDTaken(testenv.Region, in.VMID)).To(BeTrue(), "it keeps its VMID")

			w.Expect(p.Launch(waiting, original)).To(Succeed())
			p.Delete(w.Stored(waiting))
		})
	}
}

// twoHosts are two hosts with 16 CPUs, of which a guest has two each: seven VMs fit.
var twoHosts = testenv.With(testenv.Hosts(2), testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) { s.Version = "9.2" }))

// fill plans VMs until a Host has no capacity, and returns their claims.
func fill(w *testenv.Env, p *testenv.Process, host string) []*karpv1.NodeClaim {
	w.T.Helper()
	var claims []*karpv1.NodeClaim
	for i := range 7 {
		claims = append(claims, p.Planned(fmt.Sprintf("%s-%d", host, i), w.NodeClass, testenv.OnHost(host)))
	}
	return claims
}

// A claim waits for the Host that the affinity allows, also if it is in maintenance.
func TestParkAffinity(t *testing.T) {
	t.Parallel()
	for affinity, c := range map[v1alpha1.PoolAffinity]struct{ maintenance, want string }{
		v1alpha1.PoolAffinitySeparateHosts: {"pve2", "pve2"},
		v1alpha1.PoolAffinitySameHost:      {"pve1", "pve1"},
	} {
		twoHosts.Subtest(t, string(affinity), func(w *testenv.Env, p *testenv.Process) {
			w.NodeClass.Spec.PlacementStrategy.PoolAffinity = affinity
			p.Planned("pool-0", w.NodeClass, testenv.OnHost("pve1"))
			w.Expect(w.Sim.SetMaintenance(c.maintenance, true)).To(Succeed())
			p.Refresh()
			waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
			w.Expect(in.Host).To(Equal(c.want))
			w.Expect(w.Sim.SetMaintenance(c.maintenance, false)).To(Succeed())
			p.Refresh()
			w.Expect(p.Launch(waiting, w.NodeClass)).To(Succeed())
		})
	}
}

// A claim waits for a machine on a usable host. If it waited for another one, it would be recreated
// at once and wait for that again.
func TestParkUsableMachine(t *testing.T) {
	testMachines(t, func(w *testenv.Env, p *testenv.Process) {
		p.Planned("pool-0", w.NodeClass)
		p.Planned("pool-1", w.NodeClass)
		p.Types.MarkUnavailable(instancetype.OfferingSelector{Zone: placement.Zone{Region: testenv.Region, Host: "pve1"}}, "no bridge", time.Hour)
		_, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
		w.Expect(in.Host).To(Equal("pve2"))
	})
}
