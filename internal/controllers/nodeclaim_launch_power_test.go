// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func newPowerController(w *launching, kube client.Client) *power.Controller {
	return power.NewController(power.Deps{
		Clients: w.Clients, Inventory: w.Inventory, KubeCluster: w.KubeCluster, Clock: w.Clock, Registerer: prometheus.NewRegistry(), Recorder: w.Events,
		Store:            power.Store{Kube: kube, Namespace: w.Name, KubeCluster: w.KubeCluster},
		PendingTemplates: func(context.Context) (map[inventory.HostName][]string, error) { return nil, nil },
	})
}

// A launch waits for a host that was shut down only until it has booted.
func TestLaunchWakesHost(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newLaunching(t, testenv.Hosts(5), testenv.Scenario(allowSleep))
		w.ApplySettings(`{"*": {"pve4": {"powermanagement": "Enabled"}}}`)
		hosts := newPowerController(w, w.Kube)
		poll := func(interval time.Duration) inventory.HostState {
			w.Clock.Advance(interval)
			w.Refresh()
			hosts.Evaluate(w.Context())
			host, _ := w.Inventory.View().Host(testenv.Region, "pve4")
			return host
		}
		for _, interval := range []time.Duration{0, idleTime} {
			poll(interval)
		}
		w.Expect(poll(time.Minute)).To(HaveField("Sleep", inventory.Asleep))

		claim := w.Planned("a", w.class, testenv.OnHost("pve4"))
		created := time.Now()
		for !w.completed(claim) {
			poll(w.reconcile(claim).RequeueAfter)
		}
		w.Expect(w.Running(claim)).To(BeTrue())
		w.Expect(time.Since(created)).To(BeNumerically("<", 25*time.Second), "the host boots in 10 s")
	})
}

// A new leader may not read which hosts were shut down to save energy.
func TestLaunchPowerRecordsForbidden(t *testing.T) {
	nodeClaimLaunchSimulated(t, testenv.With(), func(w *launching, claim *karpv1.NodeClaim) {
		w.ApplySettings(`{"*": {"pve1": {"powermanagement": "Enabled"}}}`)
		w.Inventory.SetSleepingOutdated(nil)
		forbidden := true
		kube := interceptor.NewClient(testenv.NewFakeKube(w.T), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if forbidden {
					return apierrors.NewForbidden(corev1.Resource("configmaps"), key.Name, errors.New("no RBAC policy matched"))
				}
				return c.Get(ctx, key, o, opts...)
			},
		})
		hosts := newPowerController(w, kube)
		outdated := reconcile.Result{RequeueAfter: 2 * time.Second}
		w.Expect(w.reconcile(claim)).To(Equal(outdated))
		w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "the leader has not read the records yet")

		hosts.Evaluate(w.Context())
		w.Expect(w.reconcile(claim)).To(Equal(outdated))
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{v1alpha1.EventHostPowerUnknown}))
		for _, text := range []string{"pve1", "reading ConfigMap " + w.Name + "/" + power.ConfigMapName, "no RBAC policy matched", "allow the controller"} {
			w.Expect(w.Events.Messages(v1alpha1.EventHostPowerUnknown)).To(ConsistOf(ContainSubstring(text)))
		}
		w.Expect(w.VMs()).To(BeEmpty())

		forbidden = false
		hosts.Evaluate(w.Context())
		w.Expect(w.reconcile(claim)).To(BeZero())
		w.Expect(w.completed(claim)).To(BeTrue())
	})
}
