// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// steps are the calls at which a process can die. Looks at a task that runs are all
// alike, and so are those between which nothing was changed: one of each is enough.
func (w *world) steps(work func()) (calls []pvesim.Request, at []int) {
	w.t.Helper()
	w.sim.ResetRequests()
	work()
	calls = w.sim.Requests()
	seen := map[string]bool{}
	for n, call := range calls {
		name := call.Method + " " + call.Path
		if call.Template == "/nodes/{node}/tasks/{upid}/status" && seen[name] {
			continue
		}
		if call.Method == http.MethodGet && n > 0 && calls[n-1].Method == http.MethodGet && seen[name] {
			continue // nothing happened since it was looked at
		}
		seen[name] = true
		at = append(at, n)
	}
	return calls, at
}

// everyDeath runs a test for every moment at which the work can end.
func everyDeath(t *testing.T, calls []pvesim.Request, at []int, run func(t *testing.T, n int, after bool)) {
	t.Helper()
	for _, n := range at {
		for when, after := range map[string]bool{"before": false, "after": true} {
			if after && calls[n].Method == http.MethodGet {
				continue // a look changes nothing
			}
			t.Run(fmt.Sprintf("%s call %d, %s %s", when, n+1, calls[n].Method, calls[n].Template), func(t *testing.T) {
				t.Parallel()
				run(t, n, after)
			})
		}
	}
}

// full is a template with all that takes a step of its own.
func full(w *world) {
	w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Tags, s.ResourcePool = []string{"karpenter"}, "karpenter" })
}

// Whatever the moment at which the controller dies while it makes a template, the next
// one ends with exactly one, and with nothing beside it.
func TestTheMakingSurvivesDeathAtEveryCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, withEverything("8.4"))
	full(w)
	p := w.process()
	calls, at := w.steps(func() { w.Expect(p.tend(t.Context(), "pve1")).To(Succeed()) })
	everyDeath(t, calls, at, func(t *testing.T, n int, after bool) {
		w := newWorld(t, 1, withEverything("8.4"))
		full(w)
		_ = w.process().tend(testenv.KillAtRequest(w.t, w.sim, n, after), "pve1")
		w.sim.ClearFaults()
		next := w.process()
		zone := next.tended().Zones[0]
		guests, images, disks := w.made()
		w.Expect(guests).To(HaveLen(1), "one template")
		w.Expect(images).To(HaveLen(1))
		w.Expect(disks).To(HaveLen(2), "its disk and its cloud-init drive")
		w.Expect(w.config("pve1", zone.VMID).Options).To(HaveKeyWithValue("tags", "karpenter"))
		next.removed()
		w.Expect(w.holdings()).To(Equal(w.before), "nothing is left")
	})
}

// Who deletes or changes a template after its controller died in the making finds
// nothing left of it.
func TestAMakingThatDiedLeavesNothingWhenItIsNotWantedAnyMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, withEverything("8.4"))
	full(w)
	p := w.process()
	calls, at := w.steps(func() { w.Expect(p.tend(t.Context(), "pve1")).To(Succeed()) })
	everyDeath(t, calls, at, func(t *testing.T, n int, after bool) {
		w := newWorld(t, 1, withEverything("8.4"))
		full(w)
		_ = w.process().tend(testenv.KillAtRequest(w.t, w.sim, n, after), "pve1")
		w.sim.ClearFaults()
		if n%2 == 0 {
			w.process().removed()
			w.Expect(w.holdings()).To(Equal(w.before))
			return
		}
		w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = w.images.URL + "/other.img" })
		next := w.process()
		next.tended()
		w.Eventually(func(g Gomega) {
			g.Expect(next.tend(t.Context(), "pve1")).To(Succeed())
			guests, images, disks := w.made()
			g.Expect(guests).To(HaveLen(1))
			g.Expect(images).To(ConsistOf(ContainSubstring("other-")))
			g.Expect(disks).To(HaveLen(2))
		}).WithTimeout(10 * time.Second).Should(Succeed())
	})
}

// A change of image, or a removal, that dies at any call is finished by the next
// controller.
func TestARemovalSurvivesDeathAtEveryCall(t *testing.T) {
	t.Parallel()
	change := func(w *world) {
		w.edit(func(s *v1alpha1.ProxmoxTemplateSpec) { s.SourceImage.URL = w.images.URL + "/other.img" })
	}
	w := newWorld(t, 1)
	p := w.process()
	p.tended()
	change(w)
	calls, at := w.steps(func() { p.tended(); w.Expect(p.tend(t.Context(), "pve1")).To(Succeed()) })
	everyDeath(t, calls, at, func(t *testing.T, n int, after bool) {
		w := newWorld(t, 1)
		dying := w.process()
		dying.tended()
		change(w)
		ctx := testenv.KillAtRequest(w.t, w.sim, n, after)
		for ctx.Err() == nil {
			_ = dying.tend(ctx, "pve1")
			_ = dying.Inventory.RefreshAll(ctx)
		}
		w.sim.ClearFaults()
		next := w.process()
		next.tended()
		w.Eventually(func(g Gomega) {
			g.Expect(next.tend(t.Context(), "pve1")).To(Succeed())
			guests, images, disks := w.made()
			g.Expect(guests).To(HaveLen(1))
			g.Expect(images).To(ConsistOf(ContainSubstring("other-")))
			g.Expect(disks).To(HaveLen(2))
		}).WithTimeout(20 * time.Second).WithPolling(50 * time.Millisecond).Should(Succeed())
		next.removed()
		w.Expect(w.holdings()).To(Equal(w.before))
	})
}
