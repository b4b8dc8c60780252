// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	clocktesting "k8s.io/utils/clock/testing"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

func TestAvoidanceGrowsWhileACauseGoesOn(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	clock := clocktesting.NewFakeClock(time.Now())
	b := newBackoff(clock)
	g.Expect(b.failed("pool", "StartFailed")).To(Equal(3 * time.Minute))
	g.Expect(b.failed("pool", "StartFailed")).To(Equal(6 * time.Minute))
	g.Expect(b.failed("pool", "CloneFailed")).To(Equal(3*time.Minute), "another cause")
	g.Expect(b.failed("other", "StartFailed")).To(Equal(3*time.Minute), "another pool")
	for range 50 {
		g.Expect(b.failed("pool", "StartFailed")).To(BeNumerically("<=", 30*time.Minute))
	}
	b.succeeded("pool")
	g.Expect(b.failed("pool", "StartFailed")).To(Equal(3 * time.Minute))
	g.Expect(b.failed("other", "StartFailed")).To(Equal(6*time.Minute), "one pool's success says nothing about another")
	clock.Step(2 * time.Hour)
	g.Expect(b.failed("other", "StartFailed")).To(Equal(3*time.Minute), "after a quiet spell")
}

func TestAFailureSpeaksOnlyAboutWhatItConcerns(t *testing.T) {
	t.Parallel()
	claim := &karpv1.NodeClaim{Spec: karpv1.NodeClaimSpec{NodeClassRef: &karpv1.NodeClassReference{Name: "class"}}}
	in := instance.Intent{Region: "r", Host: "h", InstanceType: "t"}
	for reason, test := range map[string]struct {
		marks bool
		class string
	}{
		instance.ReasonStart:       {true, "class"},
		instance.ReasonTemplate:    {true, "class"},
		instance.ReasonBootData:    {true, "class"},
		instance.ReasonStorageFull: {true, ""},
		instance.ReasonTimeout:     {true, ""},
		instance.ReasonVMIDTaken:   {false, ""},
		instance.ReasonNoRoom:      {false, ""},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			what, marks := speaksAbout(claim, in, reason)
			g.Expect(marks).To(Equal(test.marks))
			g.Expect(what.NodeClass).To(Equal(test.class))
			g.Expect(what.InstanceType).To(BeEmpty())
		})
	}
}
