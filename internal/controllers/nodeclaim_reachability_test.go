// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/reconciler"
	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

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
			MatchRegexp("kubectl annotate nodeclaim %[1]s %[2]s=pve1; .*kubectl delete nodeclaim %[1]s --wait=false", b.Name, v1alpha1.AnnotationHostFenced)))
	})
}

func TestHostFenceIgnored(t *testing.T) {
	t.Parallel()
	down := func(w *testenv.Env, host string) {
		w.Expect(w.Sim.HostDown(host, "refused")).To(Succeed())
		w.Refresh()
	}
	failPolls := func(polls int) func(*testenv.Env, string) {
		return func(w *testenv.Env, _ string) {
			w.Disconnect()
			for range polls {
				w.Expect(w.Inventory.Refresh(w.T.Context(), testenv.Region)).NotTo(Succeed())
			}
		}
	}
	for name, test := range map[string]struct {
		// named is the annotation, with HOST for the host of the VM.
		named  string
		change func(w *testenv.Env, host string)
		cause  string
	}{
		"online":             {"HOST", failPolls(0), "host HOST is online"},
		"other_host":         {"pve9", down, `it names host "pve9", but the VM was last seen on host "HOST"`},
		"empty":              {"", down, `it names host ""`},
		"offline":            {"HOST", down, ""},
		"one_failed_poll":    {"HOST", failPolls(1), "host HOST is online"},
		"region_unreachable": {"HOST", failPolls(2), ""},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
			claim := w.Launched("a", w.Class())
			host := w.Intent(claim).Host
			testenv.Modify(w, claim, func(c *karpv1.NodeClaim) {
				c.Annotations[v1alpha1.AnnotationHostFenced] = strings.ReplaceAll(test.named, "HOST", host)
			})
			test.change(w, host)
			w.Expect(newReachabilityController(w).Reconcile(t.Context())).Error().NotTo(HaveOccurred())
			if test.cause == "" {
				w.Expect(w.Events.Messages("HostFenceIgnored")).To(BeEmpty())
				return
			}
			w.Expect(w.Events.Messages("HostFenceIgnored")).To(ConsistOf(ContainSubstring(strings.ReplaceAll(test.cause, "HOST", host))))
		})
	}
}
