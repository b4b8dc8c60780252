// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package driftevents_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	coredisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeoverlay"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/driftevents"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func newProvider(w *testenv.Env) *cloudprovider.CloudProvider {
	return cloudprovider.New(cloudprovider.Deps{
		Kube: w.Kube, VMs: w.Instances.VMs, Planner: w.Instances.Planner, Types: w.Types, Recorder: w.Events, Clock: w.Clock,
		Overlays: nodeoverlay.NewInstanceTypeStore(),
	})
}

func newController(w *testenv.Env, kube client.Client) *driftevents.Controller {
	return driftevents.NewController(kube, w.Instances.Planner, w.Events, w.Clock, newProvider(w).DescribeDrift)
}

// created returns a claim as core stores it after Create, and its Node.
func created(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) (*karpv1.NodeClaim, *corev1.Node) {
	w.T.Helper()
	claim := w.Claim("a", class, func(c *karpv1.NodeClaim) { c.Spec.ExpireAfter = karpv1.MustParseNillableDuration("720h") })
	filled, err := newProvider(w).Create(w.T.Context(), claim)
	w.Expect(err).NotTo(HaveOccurred())
	w.Annotate(testenv.Reload(w, claim), filled.Annotations)
	claim.Status.ProviderID, claim.Status.ImageID = filled.Status.ProviderID, filled.Status.ImageID
	claim.StatusConditions().SetTrue(karpv1.ConditionTypeLaunched)
	node := w.Node(claim)
	stored := claim.DeepCopy()
	maps.Copy(claim.Labels, filled.Labels)
	w.Expect(w.Kube.Patch(w.T.Context(), claim, client.MergeFrom(stored))).To(Succeed())
	return claim, node
}

func TestDriftDetected(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	class := w.Class()
	w.Pool(class)
	claim, node := created(w, class)
	w.StartManager(
		func(kube client.Client) testenv.Registrar { return newController(w, kube) },
		func(kube client.Client) testenv.Registrar {
			return testenv.WithCoreOptions(coredisruption.NewController(clock.RealClock{}, kube, newProvider(w)))
		},
	)
	resize := func(size v1alpha1.DiskSize) {
		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Size = size })
	}
	message := func(size string) string {
		return "Node is drifted (NodeClassDrift): ProxmoxNodeClass " + class.Name + ": spec.bootDevice.size changed from 30G to " + size
	}
	const consequence = "; Karpenter replaces it within the disruption budgets of its NodePool"
	annotation := func() string { return testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationDrift] }

	resize("60G")
	w.Eventually(annotation).Should(Equal(message("60G")))
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{v1alpha1.EventDriftDetected}))
	w.Expect(w.Events.Messages(v1alpha1.EventDriftDetected)).To(Equal([]string{message("60G") + consequence, message("60G") + consequence}))

	reconcileClaim(w, claim)
	w.Expect(w.Events.Messages(v1alpha1.EventDriftDetected)).To(HaveLen(2), "one event per change, also after a restart")
	resize("70G")
	reconcileClaim(w, claim)
	// The running controller may have recorded it, and emits the event after that.
	w.Eventually(w.Events.Messages).WithArguments(v1alpha1.EventDriftDetected).Should(ContainElement(message("70G") + consequence))

	resize("30G")
	w.Eventually(annotation).Should(BeEmpty(), "it is not drifted any more")
}

// reconcileClaim reconciles a claim as a controller does that was started just now.
func reconcileClaim(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	w.Eventually(func() time.Duration { // the running controller may write at the same time
		result, err := newController(w, w.Kube).Reconcile(w.T.Context(), testenv.Reload(w, claim))
		w.Expect(err).NotTo(HaveOccurred())
		return result.RequeueAfter
	}).Should(BeNumerically(">", time.Second))
}

func TestDriftDetectedMessages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		reason string
		pool   func(*karpv1.NodePool)
		class  func(*v1alpha1.ProxmoxNodeClass)
		claim  map[string]string
		want   string
	}{
		"taint": {
			reason: "NodePoolDrifted", want: "NodePool POOL: spec.template.spec.taints changed from unset to dedicated=db:NoSchedule",
			pool: func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}}
			},
		},
		"label_and_expiry": {
			reason: "NodePoolDrifted", want: "NodePool POOL: spec.template.metadata.labels[team] changed from unset to a, spec.template.spec.expireAfter changed from 720h0m0s to 24h0m0s",
			pool: func(p *karpv1.NodePool) {
				p.Spec.Template.Labels = map[string]string{"team": "a"}
				p.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("24h")
			},
		},
		"grace_period": {
			reason: "NodePoolDrifted", want: "NodePool POOL: spec.template.spec.terminationGracePeriod changed from unset to 1h0m0s",
			pool: func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Hour}
			},
		},
		"label_removed": {reason: "NodePoolDrifted", want: "NodePool POOL: a label or annotation was removed from spec.template.metadata"},
		"requirement": {
			reason: "RequirementsDrifted", want: "NodePool POOL: spec.template.spec.requirements[topology.kubernetes.io/zone] is In [pve9] now, and the Node has pve1",
			pool: func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.Requirements = append(p.Spec.Template.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
					Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"pve9"},
				})
			},
		},
		"instance_type": {reason: "InstanceTypeNotFound", want: `NodePool POOL: instance type "t1.2VCPU-6GB" is not available on host "pve1" any more`},
		"several_fields": {
			reason: "NodeClassDrift", want: "ProxmoxNodeClass CLASS: spec.bootDevice.size changed from 30G to 40G, spec.kubeletConfiguration.maxPods changed from unset to 50",
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.BootDevice.Size, c.Spec.KubeletConfiguration = "40G", &v1alpha1.KubeletConfiguration{MaxPods: new(int32(50))}
			},
		},
		"launched_by_older_release": {
			reason: "NodeClassDrift", want: "a field of ProxmoxNodeClass CLASS changed; the values at launch were not recorded by the release that launched the VM",
			claim: map[string]string{v1alpha1.AnnotationNodeClassFields: ""},
		},
		"migrated": {
			reason: "HostChanged", want: `the VM was migrated from host "pve1", which is its zone label, to "pve2"`, claim: map[string]string{v1alpha1.AnnotationHost: "pve2"},
		},
		"excluded": {reason: "HostExcluded", want: "host pve1 in region region-1 is excluded by settings"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			class := w.Class()
			claim, _ := created(w, class)
			w.Pool(class, func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("720h")
				if test.pool != nil {
					test.pool(p)
				}
			})
			if test.class != nil {
				test.class(class)
				w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
			}
			w.Annotate(claim, test.claim)
			claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, test.reason, test.reason)
			w.Expect(w.Kube.Status().Update(t.Context(), claim)).To(Succeed())
			reconcileClaim(w, claim)
			w.Expect(testenv.Reload(w, claim).Annotations[v1alpha1.AnnotationDrift]).To(Equal("Node is drifted (" + test.reason + "): " + strings.NewReplacer("POOL", w.Named("pool"), "CLASS", class.Name).Replace(test.want)))
		})
	}
}
