// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/fencing"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

var pve1 = inventory.HostName{Region: testenv.Region, Host: "pve1"}

func newFencing(w *testenv.Env) *fencing.ConfigMap {
	return &fencing.ConfigMap{Kube: w.Kube, Namespace: w.Name, Config: w.Config, Inventory: w.Inventory, Recorder: w.Events, Clock: clock.RealClock{}}
}

// fenceHosts creates the ConfigMap with the fenced Hosts.
func fenceHosts(w *testenv.Env, hosts map[string]string) *corev1.ConfigMap {
	fences := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: inventory.FencingConfigMap}, Data: hosts}
	w.Create(fences)
	return fences
}

func since(t time.Time) string { return `{"time":"` + t.UTC().Format(time.RFC3339) + `"}` }

// A fence ends when its Host is seen online, also for a later outage and after a restart.
func TestFenceEnds(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		down := func() {
			w.Expect(w.Sim.HostDown("pve1", "noroute")).To(Succeed())
			w.Refresh()
		}
		up := func() {
			w.Expect(w.Sim.HostUp("pve1")).To(Succeed())
			w.Clock.Advance(time.Minute) // it boots
			w.Refresh()
		}
		fences := fenceHosts(w, map[string]string{pve1.Key(): since(time.Now())})
		apply := func() {
			w.T.Helper()
			newFencing(w).Apply(w.Context(), testenv.Reload(w, fences))
			testenv.Reload(w, fences)
		}
		w.Clock.Advance(30 * time.Second)
		w.Refresh()
		apply()
		w.Expect(w.Inventory.View().IsFenced(pve1)).To(BeTrue(), "Proxmox may not have noticed yet that it is off")
		down()
		w.Clock.Advance(time.Hour)
		w.Restart(true)
		apply()
		w.Expect(w.Inventory.View().IsFenced(pve1)).To(BeTrue(), "after a restart of the controller")
		w.Expect(w.Inventory.View().IsFenced(inventory.HostName{Region: testenv.Region, Host: "pve2"})).To(BeFalse())

		up()
		w.Expect(w.Inventory.View().IsFenced(pve1)).To(BeFalse())
		down()
		w.Expect(w.Inventory.View().IsFenced(pve1)).To(BeFalse(), "another outage")
		apply()
		w.Expect(fences.Data).To(BeEmpty())
		w.Expect(w.Events.Messages(v1alpha1.EventHostFencingEnded)).To(ConsistOf(ContainSubstring(pve1.String())))
		w.Restart(true)
		apply()
		w.Expect(w.Inventory.View().IsFenced(pve1)).To(BeFalse(), "another outage, after a restart of the controller")

		testenv.Modify(w, fences, func(c *corev1.ConfigMap) {
			c.Data = map[string]string{pve1.Key(): "time: " + time.Now().UTC().Format(time.RFC3339)}
		})
		apply()
		w.Expect(w.Inventory.View().IsFenced(pve1)).To(BeTrue(), "it was declared again, in YAML")
		newFencing(w).Apply(w.Context(), nil)
		w.Expect(w.Inventory.View().IsFenced(pve1)).To(BeFalse(), "the ConfigMap was deleted")
	})
}

// The entry that an administrator wrote since is not deleted.
func TestFenceRenewed(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		fences := fenceHosts(w, map[string]string{pve1.Key(): since(time.Now().Add(-time.Hour))})
		stale := fences.DeepCopy()
		renewed := since(time.Now())
		testenv.Modify(w, fences, func(c *corev1.ConfigMap) { c.Data[pve1.Key()] = renewed })
		newFencing(w).Apply(w.Context(), stale)
		w.Expect(testenv.Reload(w, fences).Data).To(HaveKeyWithValue(pve1.Key(), renewed))
		w.Expect(w.Events.Messages(v1alpha1.EventHostFencingEnded)).To(BeEmpty())
	})
}

func TestFenceInvalid(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		now := time.Now()
		newFencing(w).Apply(w.Context(), fenceHosts(w, map[string]string{
			"pve1": since(now), "a.b": "", "a.c": "yes", "a.d": since(now.Add(time.Hour)), "a.e": "{}", "a.f": since(now),
		}))
		w.Expect(w.Events.Messages(v1alpha1.EventInvalidHostFencing)).To(ConsistOf(
			ContainSubstring(`"pve1": want REGION.HOST`), ContainSubstring(`"a.b"`), ContainSubstring(`"a.c": found "yes"`),
			ContainSubstring("in the future"), ContainSubstring(`"a.e"`)))
		w.Expect(w.Inventory.View().IsFenced(inventory.HostName{Region: "a", Host: "f"})).To(BeTrue())
	})
}

func TestFencingWatch(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NoPolling(), testenv.Hosts(2))
	testenv.Go(t, newFencing(w).Start)
	fences := fenceHosts(w, map[string]string{pve1.Key(): since(time.Now())})
	w.Eventually(func() bool { return w.Inventory.View().IsFenced(pve1) }).Should(BeTrue())
	w.Expect(w.Kube.Delete(t.Context(), fences)).To(Succeed())
	w.Eventually(func() bool { return w.Inventory.View().IsFenced(pve1) }).Should(BeFalse())
}
