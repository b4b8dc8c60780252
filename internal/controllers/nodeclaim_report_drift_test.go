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
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	coredisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

const waits = "DriftWaitingForCapacity"

// driftEventsReconcile reconciles a claim as a controller does that was started just now.
func driftEventsReconcile(w *testenv.Env, claim *karpv1.NodeClaim) time.Duration {
	w.T.Helper()
	return testenv.Reconcile(w, newReportController(w, w.Kube, instance.Metrics{}), claim).RequeueAfter
}

// created returns a claim as core stores it after Create, and its Node.
func created(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) (*karpv1.NodeClaim, *corev1.Node) {
	w.T.Helper()
	claim := w.Created("a", class, func(c *karpv1.NodeClaim) { c.Spec.ExpireAfter = karpv1.MustParseNillableDuration("720h") })
	return claim, w.Node(claim)
}

// setDrifted sets the condition of core, on a claim that the controller has seen without it.
func setDrifted(w *testenv.Env, claim *karpv1.NodeClaim, reason string) {
	w.T.Helper()
	driftEventsReconcile(w, claim)
	testenv.ModifyStatus(w, claim, func(c *karpv1.NodeClaim) {
		c.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeDrifted, reason, reason)
	})
}

func resize(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, size v1alpha1.DiskSize) {
	w.T.Helper()
	testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.BootDevice.Size = size })
}

func resized(class *v1alpha1.ProxmoxNodeClass, size string) string {
	return "Node is drifted (NodeClassDrift): ProxmoxNodeClass " + class.Name + ": spec.bootDevice.size changed from 30G to " + size
}

func drift(w *testenv.Env, claim *karpv1.NodeClaim) string {
	return w.Instances.Launches.Reported(string(claim.UID), "drift")
}

// Core's controller sets the condition.
func TestDriftEventsDrift(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NoPolling())
	class := w.Class()
	w.Pool(class)
	claim, node := created(w, class)
	w.StartManager(
		func(kube client.Client) testenv.Registrar { return newReportController(w, kube, instance.Metrics{}) },
		func(kube client.Client) testenv.Registrar {
			return testenv.WithCoreOptions(coredisruption.NewController(clock.RealClock{}, kube, w.CloudProvider()))
		},
	)
	driftEventsReconcile(w, claim)
	resize(w, class, "60G")
	annotation := func() string { return drift(w, claim) }
	w.Eventually(annotation).Should(Equal(resized(class, "60G")))
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{v1alpha1.EventDriftDetected}))
	resize(w, class, "30G")
	w.Eventually(annotation).Should(BeEmpty(), "it is not drifted any more")
}

func TestDriftReportedOnce(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling())
		class := w.Class()
		w.Pool(class)
		claim, node := created(w, class)
		cached := claim.DeepCopy()
		w.Expect(newReportController(w, w.Kube, instance.Metrics{}).Reconcile(t.Context(), cached)).To(BeZero())
		w.Expect(cached).To(Equal(claim), "objects of the cache are read concurrently")
		setDrifted(w, claim, "NodeClassDrift")
		var want []string
		for _, size := range []string{"60G", "70G"} {
			resize(w, class, v1alpha1.DiskSize(size))
			for range 2 {
				driftEventsReconcile(w, claim)
			}
			w.Expect(drift(w, claim)).To(Equal(resized(class, size)))
			message := resized(class, size) + "; Karpenter replaces it within the disruption budgets of its NodePool"
			want = append(want, message, message)
			w.Expect(w.Events.Messages(v1alpha1.EventDriftDetected)).To(Equal(want))
		}
		w.Restart(true)
		driftEventsReconcile(w, claim)
		w.Expect(w.Events.Reasons(claim)).To(HaveLen(2), "one event per change, and a new leader repeats none")
		w.Expect(w.Events.Reasons(node)).To(HaveLen(2))
	})
}

func TestDriftMessages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		reason string
		pool   func(*karpv1.NodeClaimTemplate)
		class  func(*v1alpha1.ProxmoxNodeClass)
		claim  map[string]string
		want   string
	}{
		"taint": {
			reason: "NodePoolDrifted", want: "NodePool pool: spec.template.spec.taints changed from unset to dedicated=db:NoSchedule",
			pool: func(p *karpv1.NodeClaimTemplate) {
				p.Spec.Taints = []corev1.Taint{{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule}}
			},
		},
		"label_and_expiry": {
			reason: "NodePoolDrifted", want: "NodePool pool: spec.template.metadata.labels[team] changed from unset to a, " +
				"spec.template.spec.expireAfter changed from 720h0m0s to 24h0m0s",
			pool: func(p *karpv1.NodeClaimTemplate) {
				p.Labels, p.Spec.ExpireAfter = map[string]string{"team": "a"}, karpv1.MustParseNillableDuration("24h")
			},
		},
		"grace_period": {
			reason: "NodePoolDrifted", want: "NodePool pool: spec.template.spec.terminationGracePeriod changed from unset to 1h0m0s",
			pool: func(p *karpv1.NodeClaimTemplate) {
				p.Spec.TerminationGracePeriod = &metav1.Duration{Duration: time.Hour}
			},
		},
		"label_removed": {reason: "NodePoolDrifted", want: "NodePool pool: a label or annotation was removed from spec.template.metadata"},
		"requirement": {
			reason: "RequirementsDrifted", want: "NodePool pool: spec.template.spec.requirements[topology.kubernetes.io/zone] is In [pve9] now, and the Node has pve1",
			pool: func(p *karpv1.NodeClaimTemplate) {
				p.Spec.Requirements = append(p.Spec.Requirements, karpv1.NodeSelectorRequirementWithMinValues{
					Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"pve9"},
				})
			},
		},
		"instance_type": {reason: "InstanceTypeNotFound", want: `NodePool pool: instance type "t1.2VCPU-6GB" is not available on host "pve1" any more`},
		"several_fields": {
			reason: "NodeClassDrift", want: "ProxmoxNodeClass default: spec.bootDevice.size changed from 30G to 40G, " +
				"spec.kubeletConfiguration.maxPods changed from unset to 50",
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.BootDevice.Size, c.Spec.KubeletConfiguration = "40G", &v1alpha1.KubeletConfiguration{MaxPods: new(int32(50))}
			},
		},
		"version_not_listed": {
			reason: "NodeClassDrift", claim: map[string]string{v1alpha1.AnnotationNodeClassHash: "1"},
			want: "a field of ProxmoxNodeClass default changed; status.versions does not list the values at launch",
		},
		"excluded": {reason: "HostExcluded", want: "host pve1 in region region-1 is excluded by settings"},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			w := testenv.New(t, testenv.NoPolling())
			class := w.Class()
			claim, _ := created(w, class)
			w.Pool(class, func(p *karpv1.NodePool) {
				p.Spec.Template.Spec.ExpireAfter = karpv1.MustParseNillableDuration("720h")
				if test.pool != nil {
					test.pool(&p.Spec.Template)
				}
			})
			if test.class != nil {
				testenv.Modify(w, class, test.class)
			}
			w.Annotate(claim, test.claim)
			setDrifted(w, claim, test.reason)
			driftEventsReconcile(w, claim)
			w.Expect(drift(w, claim)).To(Equal("Node is drifted (" + test.reason + "): " + test.want))
		})
	}
}

func TestDriftInsufficientCapacity(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2), testenv.Cores(4))
		class := w.Class()
		pool := w.Pool(class)
		claim, node := created(w, class)
		other := w.Planned("other", class) // has the remaining capacity
		setDrifted(w, claim, "NodeClassDrift")
		w.Clock.Advance(2 * time.Minute)
		w.Expect(driftEventsReconcile(w, claim)).To(Equal(time.Minute))
		w.Expect(w.Events.Messages(waits)).To(BeEmpty(), "an empty Node needs no replacement")

		w.PendingPod("app", "1", func(p *corev1.Pod) { p.Spec.NodeName = node.Name })
		w.Expect(driftEventsReconcile(w, claim)).To(Equal(time.Minute))
		w.Expect(w.Events.Reasons(claim)).To(ConsistOf(v1alpha1.EventDriftDetected, waits))
		w.Expect(w.Events.Reasons(pool)).To(ConsistOf(waits))
		w.Expect(w.Events.Messages(waits)).To(HaveEach(And(ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU"))))

		w.Instances.Planner.Release(string(other.UID))
		w.Expect(driftEventsReconcile(w, claim)).To(Equal(time.Minute))
		w.Expect(w.Events.Messages(waits)).To(HaveLen(2), "there is capacity now")
	})
}

func TestDriftWithoutEvent(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := testenv.New(t, testenv.NoPolling(), testenv.Cores(4))
		class := w.Class()
		w.Pool(class)
		claim, node := created(w, class)
		w.PendingPod("app", "1", func(p *corev1.Pod) { p.Spec.NodeName = node.Name })
		setDrifted(w, claim, "NodeClassDrift")
		w.Clock.Advance(40 * time.Second)
		w.Expect(driftEventsReconcile(w, claim)).To(BeNumerically("~", 20*time.Second, time.Second), "times in the API have no fractions of seconds")
		w.Expect(w.Events.Messages(waits)).To(BeEmpty(), "core has not had time to replace it")

		w.Clock.Advance(time.Minute)
		claim.DeletionTimestamp = new(metav1.Now())
		w.Expect(newReportController(w, w.Kube, instance.Metrics{}).Reconcile(t.Context(), claim)).To(BeZero())
		w.Expect(w.Events.Messages(waits)).To(BeEmpty(), "it is being deleted")
	})
}
