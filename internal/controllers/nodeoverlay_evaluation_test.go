// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corev1alpha1 "sigs.k8s.io/karpenter/pkg/apis/v1alpha1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeoverlay/evaluation"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// overlaid is a class that was not checked yet, with a NodePool, and core with a NodeOverlay
// that sets the price 7.
type overlaid struct {
	*testenv.Env
	ctx   context.Context
	class *v1alpha1.ProxmoxNodeClass
	pool  *karpv1.NodePool

	provider    *cloudprovider.CloudProvider
	core        *nodeoverlay.Controller
	evaluations int
	failure     error
}

// withSecondTemplate adds template 9100.
func withSecondTemplate(s *pvesim.Scenario) {
	addTemplate(s, 9100, func(g *pvesim.Guest) { g.Name = "ubuntu-2" })
}

func newOverlaid(w *testenv.Env) *overlaid {
	w.T.Helper()
	o := &overlaid{Env: w, class: w.NewClass(), provider: w.CloudProvider()}
	o.ctx = coreoptions.ToContext(w.T.Context(), &coreoptions.Options{FeatureGates: coreoptions.FeatureGates{NodeOverlay: true}})
	o.pool = w.Pool(o.class)

	o.core = nodeoverlay.NewController(w.Clock, w.Kube, o.provider, o.Instances.Overlays, state.NewCluster(w.Clock, w.Kube, o.provider))
	w.Create(&corev1alpha1.NodeOverlay{
		ObjectMeta: metav1.ObjectMeta{Name: w.Named("price")},
		Spec: corev1alpha1.NodeOverlaySpec{
			Requirements: []corev1alpha1.NodeSelectorRequirement{{Key: corev1.LabelInstanceTypeStable, Operator: corev1.NodeSelectorOpIn, Values: []string{testenv.InstanceType}}},
			Price:        new("7"),
		},
	})
	return o
}

// Reconcile evaluates the NodeOverlays, and counts it.
func (o *overlaid) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	o.evaluations++
	if o.failure != nil {
		return reconcile.Result{}, o.failure
	}
	return o.core.Reconcile(ctx, request)
}

// selectTemplate does what the status controller of NodeClasses does.
func (o *overlaid) selectTemplate(zone string) {
	o.T.Helper()
	testenv.Reload(o.Env, o.class).Status.SelectedZones = []string{zone}
	o.MarkReady(o.class)
}

// prices returns the prices of the instance type in core, by the image of the template.
func (o *overlaid) prices() map[string]float64 {
	o.T.Helper()
	types, err := overlay.Decorate(o.provider, o.Kube, o.Instances.Overlays).GetInstanceTypes(o.ctx, o.pool)
	o.Expect(err).NotTo(HaveOccurred())
	prices := map[string]float64{}
	for _, it := range types {
		for _, offering := range it.Offerings {
			if it.Name == testenv.InstanceType {
				prices[offering.Requirements.Get(v1alpha1.LabelInstanceImageID).Any()] = offering.Price
			}
		}
	}
	return prices
}

// gated registers a controller with feature gates.
type gated struct {
	testenv.Registrar
	gates coreoptions.FeatureGates
}

func (g gated) Register(ctx context.Context, m manager.Manager) error {
	return g.Registrar.Register(coreoptions.ToContext(ctx, &coreoptions.Options{FeatureGates: g.gates}), m)
}

func TestNodeOverlayPriceAfterTemplateChange(t *testing.T) {
	t.Parallel()
	o := newOverlaid(testenv.NewWithAPIServer(t, testenv.NoPolling(), testenv.Scenario(withSecondTemplate)))
	o.Expect(o.core.Reconcile(o.ctx, reconcile.Request{})).Error().NotTo(HaveOccurred())
	// Core's own controller is not registered: it has no event after this.
	o.StartManager(func(kube client.Client) testenv.Registrar {
		return gated{evaluation.NewController(kube, o.provider, o.core), coreoptions.FeatureGates{NodeOverlay: true}}
	})
	o.selectTemplate("region-1/pve1/9000")
	o.Eventually(o.prices).Should(HaveEach(7.0), "the class was checked after the first evaluation")
	before := o.prices()
	o.Expect(before).To(HaveLen(1))

	o.selectTemplate("region-1/pve1/9100")
	o.Eventually(o.prices).Should(HaveEach(7.0), "the template changed")
	o.Expect(o.prices()).NotTo(Equal(before), "it has another image")
}

func TestEvaluationReconcile(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		o := newOverlaid(testenv.New(t, testenv.NoPolling(), testenv.Scenario(withSecondTemplate)))
		c := evaluation.NewController(o.Kube, o.provider, o)
		expectEvaluations := func(want int, why string) {
			t.Helper()
			o.evaluations = 0
			for range 4 {
				o.Expect(c.Reconcile(o.ctx, reconcile.Request{})).To(HaveField("RequeueAfter", BeNumerically(">", 0)))
			}
			o.Expect(o.evaluations).To(Equal(want), why)
		}
		expectEvaluations(2, "once more, because core may have stored an older result")
		o.selectTemplate("region-1/pve1/9000")
		o.Expect(o.prices()).To(HaveEach(Not(Equal(7.0))), "core does not evaluate after a change of a status")
		expectEvaluations(2, "the labels changed")
		o.Expect(o.prices()).To(HaveEach(7.0))
		expectEvaluations(0, "nothing changed")

		// A host without capacity has the same labels.
		o.Types.MarkUnavailable(instancetype.OfferingSelector{
			Zone: placement.Zone{Region: testenv.Region, Host: "pve1"}, InstanceType: testenv.InstanceType, NodeClass: o.class.Name,
		}, "full", time.Hour)
		expectEvaluations(0, "only the availability changed")

		o.failure = context.DeadlineExceeded
		o.selectTemplate("region-1/pve1/9100")
		o.Expect(c.Reconcile(o.ctx, reconcile.Request{})).Error().To(MatchError(context.DeadlineExceeded))
		o.failure = nil
		expectEvaluations(2, "a failed evaluation is retried")
		o.Expect(o.prices()).To(HaveEach(7.0))

		o.Pool(o.class, func(p *karpv1.NodePool) {
			p.Name, p.Spec.Template.Spec.NodeClassRef.Name = o.Named("broken"), "nowhere"
		})
		expectEvaluations(0, "a NodePool without a class has no offerings")
		o.selectTemplate("region-1/pve1/9000")
		expectEvaluations(2, "it does not affect others")
		o.Expect(o.prices()).To(HaveEach(7.0))

		o.Expect(o.Kube.DeleteAllOf(o.ctx, &corev1alpha1.NodeOverlay{})).To(Succeed())
		o.evaluations = 0
		o.Expect(c.Reconcile(o.ctx, reconcile.Request{})).To(BeZero(), "without NodeOverlays there is nothing to check")
		o.Expect(o.evaluations).To(BeZero())
	})
}

func TestRegisterWithoutFeatureGate(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	c := evaluation.NewController(nil, nil, nil)
	g.Expect(gated{Registrar: c}.Register(t.Context(), nil)).To(Succeed(), "nothing is registered")
}
