// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

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
	_, err := p.Plan(t.Context(), waiting, w.class, nil)
	var noRoom *instance.NoRoomError
	w.Expect(errors.As(err, &noRoom)).To(BeTrue(), "%v", err)
	in, err := p.Park(t.Context(), waiting, w.class, nil)
	w.Expect(err).NotTo(HaveOccurred())
	waiting = w.reread(waiting)
	waiting.Status.ProviderID = in.ProviderID()
	w.Expect(w.kube.Status().Update(t.Context(), waiting)).To(Succeed())
	w.Expect(p.Launch(t.Context(), waiting, w.class)).To(MatchError(instance.ErrParked))
	w.Expect(w.ours()).To(BeEmpty(), "nothing was asked of Proxmox")

	// A restarted controller knows that the claim is parked and takes no capacity for it.
	next := w.process()
	for _, name := range full[1:] {
		claim := w.claimNamed(name)
		_, err := next.Plan(t.Context(), claim, w.class, nil)
		w.Expect(err).NotTo(HaveOccurred())
	}
	w.Expect(next.Launch(t.Context(), waiting, w.class)).To(Succeed(), "the first claim is not known to this one, so there is room")
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
	p := w.process()
	p.Settings.ParkPatience = time.Nanosecond
	for i := range 7 {
		w.planned(p, fmt.Sprintf("pool-%d", i))
	}
	waiting := w.claim("pool-waiting")
	in, err := p.Park(t.Context(), waiting, w.class, nil)
	w.Expect(err).NotTo(HaveOccurred())
	waiting = w.reread(waiting)
	waiting.Status.ProviderID = in.ProviderID()
	w.Expect(w.kube.Status().Update(t.Context(), waiting)).To(Succeed())
	err = p.Launch(t.Context(), waiting, w.class)
	var final *instance.LaunchError
	w.Expect(errors.As(err, &final)).To(BeTrue(), "%v", err)
	w.Expect(final.Reason).To(Equal(instance.ReasonNoRoom))
	w.Expect(final.Error()).To(ContainSubstring("CPU"))
	gone, err := p.Delete(t.Context(), waiting)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(gone).To(BeTrue())
}
