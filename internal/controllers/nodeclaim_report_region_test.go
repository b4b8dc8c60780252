// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestRegionNotConfigured(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
		class := w.Class()
		a, b := w.Launched("a", class), w.Launched("b", class)
		ctx, logged := testenv.RecordLog(t.Context())
		reconcile := func(claim *karpv1.NodeClaim) time.Duration {
			result, err := newReportController(w, w.Kube, instance.Metrics{}).Reconcile(ctx, testenv.Reload(w, claim))
			w.Expect(err).NotTo(HaveOccurred())
			return result.RequeueAfter
		}
		w.Expect(reconcile(a)).To(BeZero())
		w.Expect(logged.Lines("")).To(BeEmpty())
		w.Expect(w.Events.Reasons(a)).To(BeEmpty())

		delete(w.Clients, testenv.Region)
		w.Restart(true)
		for range 2 {
			w.Expect(reconcile(a)).To(Equal(30 * time.Minute))
			w.Expect(reconcile(b)).To(Equal(30 * time.Minute))
			w.Expect(logged.Lines("")).To(ConsistOf(ContainSubstring(fmt.Sprintf("%q", a.Name)), ContainSubstring(fmt.Sprintf("%q", b.Name))), "each claim is logged once")
		}
		w.Expect(w.Events.Reasons(a)).To(Equal([]string{v1alpha1.EventRegionNotConfigured, v1alpha1.EventRegionNotConfigured}))
		w.Expect(w.Events.Messages(v1alpha1.EventRegionNotConfigured)).To(ContainElement(
			MatchRegexp("kubectl proxmox fence region-1/pve1, .*kubectl delete nodeclaim %s --wait=false", b.Name)))
	})
}
