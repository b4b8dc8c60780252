// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"fmt"
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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/report"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/event"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

const waits = "DriftWaitingForCapacity"

// created returns a claim as core stores it after Create, and its Node.
func created(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) (*karpv1.NodeClaim, *corev1.Node) {
	w.T.Helper()
	claim := w.Created("a", class, func(c *karpv1.NodeClaim) { c.Spec.ExpireAfter = karpv1.MustParseNillableDuration("720h") })
	return claim, w.Node(claim)
}

// setDrifted sets the condition of core, on a claim that the controller has seen without it.
func setDrifted(w *testenv.Env, claim *karpv1.NodeClaim, reason string) {
	w.T.Helper()
	reportReconcile(w, claim)
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

func lastReport(w *testenv.Env, claim *karpv1.NodeClaim, what string) string {
	return w.Instances.Launches.Reported(string(claim.UID), what)
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
	reportReconcile(w, claim)
	resize(w, class, "60G")
	w.Eventually(func() string { return lastReport(w, claim, "drift") }).Should(Equal(resized(class, "60G")))
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{v1alpha1.EventDriftDetected}))
	resize(w, class, "30G")
	w.Eventually(func() string { return lastReport(w, claim, "drift") }).Should(BeEmpty(), "it is not drifted any more")
}

func TestDriftReportedOnce(t *testing.T) {
	testenv.With(testenv.NoPolling()).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		w.Pool(class)
		claim, node := created(w, class)
		cached := claim.DeepCopy()
		w.Expect(newReportController(w, w.Kube, instance.Metrics{}).Reconcile(w.Context(), cached)).To(BeZero())
		w.Expect(cached).To(Equal(claim), "objects of the cache are read concurrently")
		setDrifted(w, claim, "NodeClassDrift")
		var want []string
		for _, size := range []string{"60G", "70G"} {
			resize(w, class, v1alpha1.DiskSize(size))
			for range 2 {
				reportReconcile(w, claim)
			}
			w.Expect(lastReport(w, claim, "drift")).To(Equal(resized(class, size)))
			message := resized(class, size) + "; Karpenter replaces it within the disruption budgets of its NodePool"
			want = append(want, message, message)
			w.Expect(w.Events.Messages(v1alpha1.EventDriftDetected)).To(Equal(want))
		}
		w.Restart(true)
		reportReconcile(w, claim)
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
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
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
			reportReconcile(w, claim)
			w.Expect(lastReport(w, claim, "drift")).To(Equal("Node is drifted (" + test.reason + "): " + test.want))
		})
	}
}

func TestDriftInsufficientCapacity(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2), testenv.Cores(4)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		pool := w.Pool(class)
		claim, node := created(w, class)
		other := w.Planned("other", class) // has the remaining capacity
		setDrifted(w, claim, "NodeClassDrift")
		w.Clock.Advance(40 * time.Second)
		w.Expect(reportReconcile(w, claim)).To(BeNumerically("~", 20*time.Second, time.Second), "core has not had time to replace it")
		w.Clock.Advance(time.Minute)
		w.Expect(reportReconcile(w, claim)).To(Equal(watch.Again))
		w.Expect(w.Events.Messages(waits)).To(BeEmpty(), "an empty Node needs no replacement")

		w.PendingPod("app", "1", func(p *corev1.Pod) { p.Spec.NodeName = node.Name })
		w.Expect(reportReconcile(w, claim)).To(Equal(watch.Again))
		w.Expect(w.Events.Reasons(claim)).To(ConsistOf(v1alpha1.EventDriftDetected, waits))
		w.Expect(w.Events.Reasons(pool)).To(ConsistOf(waits))
		w.Expect(w.Events.Messages(waits)).To(HaveEach(And(ContainSubstring("pve1"), ContainSubstring("pve2"), ContainSubstring("CPU"))))

		deleting := testenv.Reload(w, claim).DeepCopy()
		deleting.DeletionTimestamp = new(metav1.Now())
		w.Expect(newReportController(w, w.Kube, instance.Metrics{}).Reconcile(w.Context(), deleting)).To(BeZero())

		w.Instances.Planner.Release(string(other.UID))
		w.Expect(reportReconcile(w, claim)).To(Equal(watch.Again))
		w.Expect(w.Events.Messages(waits)).To(HaveLen(2), "there is capacity now")
	})
}

func newReportController(w *testenv.Env, kube client.Client, metrics instance.Metrics) *report.Controller {
	return report.NewController(report.Deps{
		Kube: kube, VMs: w.Instances.VMs, Planner: w.Instances.Planner, Launches: w.Instances.Launches, Inventory: w.Inventory, Recorder: w.Events,
		Clock: w.Clock, Metrics: metrics, DescribeDrift: w.CloudProvider().DescribeDrift,
	})
}

// reportReconcile reconciles a claim as a controller does that was started just now.
func reportReconcile(w *testenv.Env, claim *karpv1.NodeClaim) time.Duration {
	w.T.Helper()
	return testenv.Reconcile(w, newReportController(w, w.Kube, instance.Metrics{}), claim).RequeueAfter
}

func TestOfflineReconcile(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.Hosts(3))
	class := w.Class()
	here, elsewhere := w.Launched("here", class, testenv.OnHost("pve2")), w.Launched("elsewhere", class, testenv.OnHost("pve3"))
	node := w.Node(here)
	w.StartManager(func(kube client.Client) testenv.Registrar { return newReportController(w, kube, instance.Metrics{}) })
	reportReconcile(w, here)
	w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
	w.Eventually(func() string { return lastReport(w, here, "offline") }).Should(HavePrefix("pve2 since "))
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{"HostOffline"}))
	w.Expect(w.Events.Messages("HostOffline")).To(HaveEach(MatchRegexp(
		`^Host pve2 in region region-1 is offline since \S+Z, and the VM on it is unreachable; .* delete its NodeClaim$`)))
	reportReconcile(w, here)
	w.Expect(w.Events.Reasons(here)).To(Equal([]string{"HostOffline"}), "one event per change")

	w.Expect(w.Sim.HostUp("pve2")).To(Succeed())
	w.Eventually(func() string { return lastReport(w, here, "offline") }).Should(BeEmpty())
	w.Eventually(w.Events.Reasons).WithArguments(node).Should(Equal([]string{"HostOffline", "HostOnline"}))
	w.Expect(w.Events.Reasons(here)).To(Equal([]string{"HostOffline", "HostOnline"}))
	w.Expect(w.Events.Messages("HostOnline")).To(HaveEach(MatchRegexp(`^Host pve2 in region region-1 is online again; it was offline since \S+Z$`)))
	w.Expect(w.Events.Reasons(elsewhere)).To(BeEmpty())
}

// The VM was migrated by HA: VMMigrated reports it. Then the Cluster does not respond, so nothing is known about its Hosts.
// A new leader reports what it finds: the last one may have died with the host.
func TestReconcileUnreported(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.Hosts(2)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		claim := w.Launched("a", w.Class(), testenv.OnHost("pve2"))
		w.Instances.Launches.Report(string(claim.UID), "offline", "pve1 since 2026-11-16T00:00:00Z")
		w.Expect(reportReconcile(w, claim)).To(BeZero())
		w.Expect(lastReport(w, claim, "offline")).To(BeEmpty())
		w.Expect(w.Sim.HostDown("pve2", "noroute")).To(Succeed())
		w.Restart(true)
		waitOnline(w, false)
		w.Expect(reportReconcile(w, claim)).To(BeZero())
		w.Expect(w.Events.Reasons(claim)).To(Equal([]string{"HostOffline"}))
		w.Disconnect()
		failPolls(w)
		w.Expect(reportReconcile(w, claim)).To(BeZero())
		w.Expect(w.Events.Reasons(claim)).To(HaveLen(1))
	})
}

func TestRegionNotConfigured(t *testing.T) {
	testenv.With(testenv.NoPolling(), testenv.OtherHosts(1)).Test(t, func(w *testenv.Env, _ *testenv.Process) {
		class := w.Class()
		a, b := w.Launched("a", class), w.Launched("b", class)
		ctx, logged := testenv.RecordLog(w.Context())
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
			w.Expect(reconcile(a)).To(Equal(event.Interval))
			w.Expect(reconcile(b)).To(Equal(event.Interval))
			w.Expect(logged.Lines("")).To(ConsistOf(ContainSubstring(fmt.Sprintf("%q", a.Name)), ContainSubstring(fmt.Sprintf("%q", b.Name))), "each claim is logged once")
		}
		w.Expect(w.Events.Reasons(a)).To(Equal([]string{v1alpha1.EventRegionNotConfigured, v1alpha1.EventRegionNotConfigured}))
		w.Expect(w.Events.Messages(v1alpha1.EventRegionNotConfigured)).To(ContainElement(
			MatchRegexp("kubectl proxmox fence region-1/pve1, .*kubectl delete nodeclaim %s --wait=false", b.Name)))
	})
}
