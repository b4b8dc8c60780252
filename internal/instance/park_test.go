// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// parked is a claim that core goes on with although it waits for room.
func (w *world) parked(p *process, claim *karpv1.NodeClaim) (*karpv1.NodeClaim, instance.Intent) {
	w.t.Helper()
	in, err := p.Planner.Park(w.t.Context(), claim, w.class, nil)
	w.Expect(err).NotTo(HaveOccurred())
	claim = w.reread(claim)
	claim.Status.ProviderID = in.ProviderID()
	w.Expect(w.kube.Status().Update(w.t.Context(), claim)).To(Succeed())
	return w.reread(claim), in
}

// onlyOn makes a claim that may have one host.
func (w *world) onlyOn(host, name string) *karpv1.NodeClaim {
	w.t.Helper()
	claim := w.claim(name)
	claim.Spec.Requirements = append(claim.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
		Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{host},
	})
	w.Expect(w.kube.Update(w.t.Context(), claim)).To(Succeed())
	return claim
}

// A static pool's claim waits for room with its VMID held, and is launched when
// room comes.
func TestAParkedClaimIsLaunchedWhenRoomComes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	// One host of 16 CPUs, of which a guest has two: seven of two CPUs each.
	var full []string
	for i := range 7 {
		name := fmt.Sprintf("pool-%d", i)
		w.planned(p, name)
		full = append(full, name)
	}
	waiting := w.claim("pool-waiting")
	_, err := p.Planner.Plan(t.Context(), waiting, w.class, nil)
	var noRoom *instance.InsufficientCapacityError
	w.Expect(errors.As(err, &noRoom)).To(BeTrue(), "%v", err)
	waiting, in := w.parked(p, waiting)
	w.Expect(p.Launcher.Launch(t.Context(), waiting, w.class)).To(MatchError(instance.ErrParked))
	w.Expect(w.ours()).To(BeEmpty(), "nothing was asked of Proxmox")

	// A restarted controller knows that the claim is parked and takes no capacity for it.
	next := w.process()
	for _, name := range full[1:] {
		claim := w.claimNamed(name)
		_, err := next.Planner.Plan(t.Context(), claim, w.class, nil)
		w.Expect(err).NotTo(HaveOccurred())
	}
	w.Expect(next.Launcher.Launch(t.Context(), waiting, w.class)).To(Succeed(), "the first claim is not known to this one, so there is room")
	launched := w.reread(waiting)
	after, _, err := instance.ReadIntent(launched)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(after.Parked).To(BeFalse())
	w.Expect(after.VMID).To(Equal(in.VMID))
	w.deleted(next, launched)
}

func TestAParkedClaimGivesUpInTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process(with(func(s *instance.Settings) { s.StaticCapacityTimeout = time.Nanosecond }))
	for i := range 7 {
		w.planned(p, fmt.Sprintf("pool-%d", i))
	}
	waiting, _ := w.parked(p, w.claim("pool-waiting"))
	err := p.Launcher.Launch(t.Context(), waiting, w.class)
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(instance.ReasonInsufficientCapacity))
	w.Expect(final.Error()).To(ContainSubstring("CPU"))
	gone, err := p.Deleter.Delete(t.Context(), waiting)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(gone).To(BeTrue())
}

// The class is Ready through another host, the pool may have this one only.
func TestAStaticPoolWaitsForAHostThatItsClassCannotUse(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	p := w.process()
	selected := w.class.Status.SelectedZones
	w.class.Status.SelectedZones = selected[1:]
	w.class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: region + "/pve1", Reason: "bridge vmbr7 is not there"}}
	waiting, in := w.parked(p, w.onlyOn("pve1", "pool-waiting"))
	w.Expect(in.Host).To(Equal("pve1"))
	w.Expect(in.InstanceType).To(Equal("t1.2VCPU-6GB"))
	err := p.Launcher.Launch(t.Context(), waiting, w.class)
	w.Expect(err).To(MatchError(instance.ErrParked))
	w.Expect(err).To(MatchError(ContainSubstring("bridge vmbr7")), "the class knows why")

	w.class.Status.SelectedZones, w.class.Status.UnusableZones = selected, nil
	w.Expect(p.Launcher.Launch(t.Context(), waiting, w.class)).To(Succeed())
	launched := w.reread(waiting)
	w.Expect(w.intentOf(launched)).To(And(HaveField("VMID", in.VMID), HaveField("TemplateID", 9000), HaveField("Storage", Not(BeEmpty()))))
	w.deleted(p, launched)
	w.expectNothingLeft()
}

// What nothing meets is not refused either: the time that the claim waits is what
// keeps core from making it anew without a pause.
func TestAStaticPoolWaitsForWhatNothingMeets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	waiting, in := w.parked(p, w.onlyOn("pve-typo", "pool-waiting"))
	w.Expect(in.InstanceType).To(BeEmpty())
	w.Expect(p.Launcher.Launch(t.Context(), waiting, w.class)).To(MatchError(And(ContainSubstring("zone In [pve-typo]"), ContainSubstring(instance.ErrParked.Error()))))
	w.Expect(w.process().Launcher.Launch(t.Context(), waiting, w.class)).To(MatchError(instance.ErrParked), "also after a restart")
	late := w.process(with(func(s *instance.Settings) { s.StaticCapacityTimeout = time.Nanosecond }))
	w.Expect(late.Launcher.Launch(t.Context(), waiting, w.class)).To(haveReason(instance.ReasonInsufficientCapacity))
	w.deleted(p, waiting)
	w.expectNothingLeft()
}

// Whatever else stands in the way once there is room is no matter of the VMID.
func TestAParkedClaimWaitsForWhateverIsLacking(t *testing.T) {
	t.Parallel()
	for what, take := range map[string]func(*v1alpha1.ProxmoxNodeClass){
		"takes no iso":          func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.Storage = "local-lvm" },
		"is not there any more": func(c *v1alpha1.ProxmoxNodeClass) { c.Status.SelectedZones = []string{region + "/pve1/9999"} },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			p := w.process()
			waiting, in := w.parked(p, w.claim("pool-waiting"))
			whole := w.class.DeepCopy()
			take(w.class)
			err := p.Launcher.Launch(t.Context(), waiting, w.class)
			w.Expect(err).To(MatchError(instance.ErrParked))
			w.Expect(p.inventory.View().IsVMIDTaken(region, in.VMID)).To(BeTrue(), "it keeps its VMID")

			late := w.process(with(func(s *instance.Settings) { s.StaticCapacityTimeout = time.Nanosecond }))
			w.Expect(late.Launcher.Launch(t.Context(), waiting, w.class)).To(haveReason(instance.ReasonInsufficientCapacity))

			w.Expect(p.Launcher.Launch(t.Context(), waiting, whole)).To(Succeed())
			w.deleted(p, w.reread(waiting))
		})
	}
}

// Another VMID would be another VM to core, which knows this one.
func TestAParkedClaimWhoseVMIDIsTakenIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	p := w.process()
	waiting, in := w.parked(p, w.claim("pool-waiting"))
	task, err := w.client().CloneVM(t.Context(), proxmox.CloneRequest{Host: "pve1", TemplateID: 9000, VMID: in.VMID, Name: "somebodys"})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(task).NotTo(BeEmpty())
	late := w.process()
	w.Eventually(func() error { return late.Launcher.Launch(t.Context(), waiting, w.class) }).WithTimeout(30 * time.Second).
		Should(haveReason(instance.ReasonVMIDTaken))
}

// haveReason matches the end of a launch.
func haveReason(reason string) types.GomegaMatcher {
	return WithTransform(func(err error) string {
		final, ok := errors.AsType[*instance.LaunchError](err)
		if !ok {
			return fmt.Sprint(err)
		}
		return final.Reason
	}, Equal(reason))
}
