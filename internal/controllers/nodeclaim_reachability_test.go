// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/reachability"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func newReachabilityController(w *testenv.Env) *reachability.Controller {
	return reachability.NewController(w.Kube, w.Instances.VMs, w.Events)
}

func TestRegionNotConfigured(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
		class := w.Class()
		a, b := w.Launched("a", class), w.Launched("b", class)
		ctx, logged := testenv.RecordLog(t.Context())
		minutely := reconciler.Result{RequeueAfter: time.Minute}
		w.Expect(newReachabilityController(w).Reconcile(ctx)).To(Equal(minutely))
		w.Expect(logged.Lines("")).To(BeEmpty())
		w.Expect(w.Events.Reasons(a)).To(BeEmpty())

		delete(w.Clients, testenv.Region)
		w.Restart(true)
		c := newReachabilityController(w)
		for range 2 {
			w.Expect(c.Reconcile(ctx)).To(Equal(minutely))
			w.Expect(logged.Lines("")).To(ConsistOf(And(
				ContainSubstring(testenv.Region), ContainSubstring(fmt.Sprintf("%q", []string{a.Name, b.Name})))), "the same claims are logged once")
		}
		w.Expect(w.Events.Reasons(a)).To(Equal([]string{v1alpha1.EventRegionNotConfigured, v1alpha1.EventRegionNotConfigured}))
		w.Expect(w.Events.Messages(v1alpha1.EventRegionNotConfigured)).To(ContainElement(
			MatchRegexp("kubectl proxmox fence region-1/pve1, .*kubectl delete nodeclaim %s --wait=false", b.Name)))
	})
}
