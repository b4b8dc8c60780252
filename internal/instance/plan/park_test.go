// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// parked returns a claim that waits for capacity, and its intent.
func parked(w *testenv.Env, p *testenv.Process, claim *karpv1.NodeClaim) (*karpv1.NodeClaim, instance.Intent) {
	w.T.Helper()
	in, err := p.Instances.Planner.Park(w.T.Context(), claim, w.NodeClass, nil)
	w.Expect(err).NotTo(HaveOccurred())
	claim = w.SetPlanned(claim, in)
	return claim, w.Intent(claim)
}

// claimOnHost returns a claim that requires a Host.
func claimOnHost(w *testenv.Env, host, name string) *karpv1.NodeClaim {
	w.T.Helper()
	return w.Claim(name, w.NodeClass, testenv.OnHost(host))
}

// haveReason matches a *instance.LaunchError.
func haveReason(reason string) types.GomegaMatcher {
	return WithTransform(func(err error) string {
		final, ok := errors.AsType[*instance.LaunchError](err)
		if !ok {
			return fmt.Sprint(err)
		}
		return final.Reason
	}, Equal(reason))
}

// A claim of a static NodePool waits with a reserved VMID, and is launched when there is
// capacity.
func TestUnparkWithCapacity(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	// One host with 16 CPUs, of which a guest has two: seven VMs with two CPUs fit.
	var full []*karpv1.NodeClaim
	for i := range 7 {
		full = append(full, p.Planned(fmt.Sprintf("pool-%d", i), w.NodeClass))
	}
	waiting := w.Claim("pool-waiting", w.NodeClass)
	_, err := p.Instances.Planner.Plan(t.Context(), waiting, w.NodeClass, plan.Options{})
	var insufficient *instance.InsufficientCapacityError
	w.Expect(errors.As(err, &insufficient)).To(BeTrue(), "%v", err)
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
	w.Expect(launched.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationInPlaceUpdateHash, w.NodeClass.InPlaceHash()))
	w.Expect(launched.Annotations).To(HaveKeyWithValue(v1alpha1.AnnotationNodeClassHash, w.NodeClass.Hash()))
	after, _, err := instance.ReadIntent(launched)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(after.Parked).To(BeFalse())
	w.Expect(after.VMID).To(Equal(in.VMID))
	next.Delete(launched)
}

// A claim of a static NodePool does not use the reserve. It waits until another VM is deleted.
func TestUnparkReserve(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	w.NodeClass.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
	p := w.StartProcess()
	// Two hosts with 16 CPUs, of which a guest has two each: a host can hold eight.
	var full []*karpv1.NodeClaim
	for i := range 6 {
		full = append(full, p.Planned(fmt.Sprintf("pool-%d", i), w.NodeClass))
	}
	waiting := w.Claim("pool-waiting", w.NodeClass)
	_, err := p.Instances.Planner.Plan(t.Context(), waiting, w.NodeClass, plan.Options{})
	w.Expect(err).To(MatchError(ContainSubstring("insufficient reserve")))
	waiting, _ = parked(w, p, waiting)
	err = p.Launch(waiting, w.NodeClass)
	w.Expect(err).To(MatchError(instance.ErrParked))
	w.Expect(err).To(MatchError(ContainSubstring("insufficient reserve")))
	p.Delete(full[0])
	w.Expect(p.Launch(waiting, w.NodeClass)).To(Succeed())
}

// lossyKube fails the next patch with an error, before or after it is applied.
type lossyKube struct {
	client.Client
	err     error
	applied bool
}

func (k *lossyKube) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	err := k.err
	k.err = nil
	if err != nil && !k.applied {
		return err
	}
	return errors.Join(err, k.Client.Patch(ctx, object, patch, options...))
}

// The new intent of a parked claim could not be written, or the response was lost.
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			kube := &lossyKube{Client: w.Kube}
			p := w.StartProcess(testenv.Kube(kube))
			waiting, _ := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
			kube.err, kube.applied = test.err, test.applied
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

// The reservations of all claims are restored while parked ones are planned.
func TestUnparkWhileRestored(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(4))
	p := w.StartProcess(testenv.NoPolling())
	for i := range 20 {
		waiting, in := parked(w, p, w.Claim(fmt.Sprintf("pool-%d", i), w.NodeClass))
		ctx, cancel := context.WithCancel(t.Context())
		reservation := in.Reservation(waiting)
		var restoring sync.WaitGroup
		restoring.Go(func() {
			for ctx.Err() == nil {
				p.Inventory.Ledger().Restore(reservation)
			}
		})
		planned, err := p.Instances.Planner.Unpark(t.Context(), waiting, w.NodeClass, in)
		cancel()
		restoring.Wait()
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(planned).To(And(HaveField("VMID", in.VMID), HaveField("Parked", false), HaveField("ISOStorage", Not(BeEmpty()))))
		w.Expect(p.Inventory.View().Reservations[string(waiting.UID)].CPUs).To(Equal(planned.Cores))
	}
}

func TestUnparkTimeout(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.StaticCapacityTimeout = time.Nanosecond }))
	for i := range 7 {
		p.Planned(fmt.Sprintf("pool-%d", i), w.NodeClass)
	}
	waiting, _ := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
	err := p.Launch(waiting, w.NodeClass)
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(v1alpha1.EventInsufficientCapacity))
	w.Expect(final.Error()).To(ContainSubstring("CPU"))
	deleted, err := p.Instances.Deleter.Delete(t.Context(), waiting)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(deleted).To(BeTrue())
}

// The class is Ready on another host, which the NodePool does not allow.
func TestParkOnUnusableHost(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t, testenv.Hosts(2))
	p := w.StartProcess()
	selected := w.NodeClass.Status.SelectedZones
	w.NodeClass.Status.SelectedZones = selected[1:]
	w.NodeClass.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: testenv.Region + "/pve1", Reason: "bridge vmbr7 is not there"}}
	waiting, in := parked(w, p, claimOnHost(w, "pve1", "pool-waiting"))
	w.Expect(in.Host).To(Equal("pve1"))
	w.Expect(in.InstanceType).To(Equal("t1.2VCPU-6GB"))
	err := p.Launch(waiting, w.NodeClass)
	w.Expect(err).To(MatchError(instance.ErrParked))
	w.Expect(err).To(MatchError(ContainSubstring("bridge vmbr7")), "the reason in the status of the class")

	w.NodeClass.Status.SelectedZones, w.NodeClass.Status.UnusableZones = selected, nil
	w.Expect(p.Launch(waiting, w.NodeClass)).To(Succeed())
	launched := w.Stored(waiting)
	w.Expect(w.Intent(launched)).To(And(HaveField("VMID", in.VMID), HaveField("TemplateID", 9000), HaveField("Storage", Not(BeEmpty()))))
	p.Delete(launched)
	w.ExpectNoOrphans()
}

// Claims that nothing meets are parked as well: otherwise core would recreate them
// without delay.
func TestParkUnplaceable(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	waiting, in := parked(w, p, claimOnHost(w, "pve-typo", "pool-waiting"))
	w.Expect(in.InstanceType).To(BeEmpty())
	w.Expect(p.Launch(waiting, w.NodeClass)).To(MatchError(And(ContainSubstring("zone In [pve-typo]"), ContainSubstring(instance.ErrParked.Error()))))
	w.Expect(w.StartProcess().Launch(waiting, w.NodeClass)).To(MatchError(instance.ErrParked), "also after a restart")
	late := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.StaticCapacityTimeout = time.Nanosecond }))
	w.Expect(late.Launch(waiting, w.NodeClass)).To(haveReason(v1alpha1.EventInsufficientCapacity))
	p.Delete(waiting)
	w.ExpectNoOrphans()
}

// A claim stays parked for other reasons, too.
func TestUnparkWaits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1alpha1.ProxmoxNodeClass){
		"no_ISO_storage":   func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "local-lvm" },
		"missing_template": func(c *v1alpha1.ProxmoxNodeClass) { c.Status.SelectedZones = []string{testenv.Region + "/pve1/9999"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.NewFake(t)
			p := w.StartProcess()
			waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
			original := w.NodeClass.DeepCopy()
			change(w.NodeClass)
			err := p.Launch(waiting, w.NodeClass)
			w.Expect(err).To(MatchError(instance.ErrParked))
			w.Expect(p.Inventory.View().IsVMIDTaken(testenv.Region, in.VMID)).To(BeTrue(), "it keeps its VMID")

			late := w.StartProcess(testenv.Settings(func(s *instance.Settings) { s.StaticCapacityTimeout = time.Nanosecond }))
			w.Expect(late.Launch(waiting, w.NodeClass)).To(haveReason(v1alpha1.EventInsufficientCapacity))

			w.Expect(p.Launch(waiting, original)).To(Succeed())
			p.Delete(w.Stored(waiting))
		})
	}
}

// The providerID is known to core, so the VMID cannot change.
func TestUnparkVMIDTaken(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	waiting, in := parked(w, p, w.Claim("pool-waiting", w.NodeClass))
	w.CloneByHand("pve1", in.VMID, "foreign")
	late := w.StartProcess()
	w.Eventually(func() error { return late.Launch(waiting, w.NodeClass) }).WithTimeout(30 * time.Second).
		Should(haveReason(v1alpha1.EventVMIDTaken))
}

// Claims of a static NodePool are parked while their hosts are avoided after a failure.
func TestParkOnAvoidedHost(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	p := w.StartProcess()
	p.Types.MarkUnavailable(instancetype.OfferingSelector{Zone: placement.Zone{Region: testenv.Region, Host: "pve1"}}, "no bridge", time.Hour)
	claim := w.Claim("pool-abc", w.NodeClass)
	_, err := p.Instances.Planner.Plan(t.Context(), claim, w.NodeClass, plan.Options{})
	w.Expect(err).To(HaveOccurred())
	_, err = p.Instances.Planner.Park(t.Context(), claim, w.NodeClass, nil)
	w.Expect(err).NotTo(HaveOccurred())
	err = p.Launch(w.Stored(claim), w.NodeClass)
	w.Expect(err).To(MatchError(instance.ErrParked))
	w.Expect(err.Error()).To(ContainSubstring("no bridge"))
}
