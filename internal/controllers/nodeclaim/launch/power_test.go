// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/power"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// A new leader may not read which hosts were shut down to save energy.
func TestLaunchPowerRecordsForbidden(t *testing.T) {
	t.Parallel()
	settings, err := inventory.ParseSettings([]byte(`{"*": {"pve1": {"powermanagement": "Enabled"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	w := testenv.New(t, testenv.NoPolling(), testenv.HostSettings(settings))
	claim := w.Planned("a", w.Class())
	w.Inventory.SetSleepingOutdated(nil)
	forbidden := true
	kube := interceptor.NewClient(testenv.NewFakeKube(t), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if forbidden {
				return apierrors.NewForbidden(corev1.Resource("configmaps"), key.Name, errors.New("no RBAC policy matched"))
			}
			return c.Get(ctx, key, o, opts...)
		},
	})
	hosts := power.NewController(power.Deps{
		Clients: w.Clients, Inventory: w.Inventory, KubeCluster: w.KubeCluster, Clock: w.Clock, Registerer: prometheus.NewRegistry(), Recorder: w.Events,
		Store:            power.Store{Kube: kube, Namespace: w.Name, KubeCluster: w.KubeCluster},
		PendingTemplates: func(context.Context) (map[inventory.HostName][]string, error) { return nil, nil },
	})
	c := controller(w)
	reconcile := func() {
		t.Helper()
		_, err := c.Reconcile(t.Context(), testenv.Reload(w, claim))
		w.Expect(err).NotTo(HaveOccurred())
	}
	reconcile()
	w.Expect(w.Events.Reasons(claim)).To(BeEmpty(), "the leader has not read the records yet")

	hosts.Evaluate(t.Context())
	reconcile()
	w.Expect(w.Events.Reasons(claim)).To(Equal([]string{v1alpha1.EventHostPowerUnknown}))
	w.Expect(w.Events.Messages(v1alpha1.EventHostPowerUnknown)).To(ConsistOf(And(
		ContainSubstring("pve1"), ContainSubstring("reading ConfigMap "+w.Name+"/"+power.ConfigMapName), ContainSubstring("no RBAC policy matched"), ContainSubstring("allow the controller"))))
	w.Expect(w.VMs()).To(BeEmpty())

	forbidden = false
	hosts.Evaluate(t.Context())
	reconcile()
	w.Expect(testenv.Reload(w, claim).Annotations).To(HaveKey(v1alpha1.AnnotationLaunchCompleted))
}
