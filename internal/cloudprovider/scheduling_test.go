// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/scheduler"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// karpenter runs core's controllers with the CloudProvider and a real API server.
type karpenter struct {
	*testenv.Env
	ctx       context.Context
	cp        *cloudprovider.CloudProvider
	cluster   *state.Cluster
	scheduler scheduler.Scheduler
	lifecycle *lifecycle.Controller
}

func newKarpenter(t *testing.T, options ...testenv.Option) *karpenter {
	t.Helper()
	k := &karpenter{Env: testenv.NewWithAPIServer(t, options...), ctx: coreoptions.ToContext(t.Context(), &coreoptions.Options{
		CPURequests: 1000, IgnoreDRARequests: true,
		PreferencePolicy: coreoptions.PreferencePolicyRespect, MinValuesPolicy: coreoptions.MinValuesPolicyStrict,
		FeatureGates: coreoptions.FeatureGates{CapacityBuffer: true},
	})}
	k.startCore()
	return k
}

// startCore starts core's controllers with the current Process.
func (k *karpenter) startCore() {
	k.cp = k.CloudProvider(func(d *cloudprovider.Deps) {
		d.CapacityBuffers, d.Repair = true, cloudprovider.RepairTolerations{Unready: unreadyToleration, Drain: 5 * time.Minute}
	})
	k.cluster = state.NewCluster(k.Clock, k.Kube, k.cp)
	k.scheduler = scheduler.New(scheduler.Deps{Kube: k.Kube, Recorder: k.Events, Cluster: k.cluster, Clock: k.Clock}, k.cp)
	k.lifecycle = lifecycle.NewController(k.Clock, k.Kube, k.cp, k.Events, k.cluster, nodepoolhealth.NewState(), nil)
}

// readyPool creates a NodePool that is Ready, and returns its class.
func (k *karpenter) readyPool(changes ...func(*v1alpha1.ProxmoxNodeClass, *karpv1.NodePool)) *v1alpha1.ProxmoxNodeClass {
	k.T.Helper()
	template := &karpv1.NodePool{}
	class := k.Class(func(class *v1alpha1.ProxmoxNodeClass) {
		for _, change := range changes {
			change(class, template)
		}
	})
	pool := k.Pool(class, func(p *karpv1.NodePool) {
		p.Spec.Template.Labels = template.Spec.Template.Labels
		p.Spec.Template.Spec.Requirements = append([]karpv1.NodeSelectorRequirementWithMinValues{}, template.Spec.Template.Spec.Requirements...)
	})
	pool.StatusConditions().SetTrue(karpv1.ConditionTypeValidationSucceeded)
	pool.StatusConditions().SetTrue(karpv1.ConditionTypeNodeClassReady)
	k.Expect(k.Kube.Status().Update(k.ctx, pool)).To(Succeed())
	k.Expect(pool.StatusConditions().Get(operatorstatus.ConditionReady).IsTrue()).To(BeTrue())
	return class
}

// pending creates a pod that the Kubernetes scheduler could not schedule, with a constraint
// that spreads such pods over the Hosts.
func (k *karpenter) pending(name, cpu string, changes ...func(*corev1.Pod)) {
	k.T.Helper()
	k.PendingPod(name, cpu, append([]func(*corev1.Pod){func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels},
		}}
	}}, changes...)...)
}

// daemonSet creates a DaemonSet with a container for some Nodes.
func (k *karpenter) daemonSet(name string, nodes corev1.NodeSelectorRequirement, container corev1.Container) {
	k.T.Helper()
	container.Name, container.Image = "daemon", "daemon"
	labels := map[string]string{"app": name}
	k.Create(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: name}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{container},
			Affinity:   &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: nodeSelector(nodes)}},
		}},
	}})
}

// nodeSelector returns a selector of which one of the requirements must be met.
func nodeSelector(anyOf ...corev1.NodeSelectorRequirement) *corev1.NodeSelector {
	selector := &corev1.NodeSelector{}
	for _, requirement := range anyOf {
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{requirement}})
	}
	return selector
}

// labelIn requires one of some values of a label.
func labelIn(key string, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
}

// requires returns requirements of a NodePool or a NodeClaim with one of some values of a label.
func requires(key string, values ...string) []karpv1.NodeSelectorRequirementWithMinValues {
	return []karpv1.NodeSelectorRequirementWithMinValues{{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}}
}

// cpus returns the resources of a container that requests CPUs.
func cpus(n string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(n)}}
}

// schedule returns how many NodeClaims core plans for the only pending pod.
func (k *karpenter) schedule() int {
	k.T.Helper()
	results, err := k.scheduler.Schedule(k.ctx)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(len(results.NewNodeClaims)+len(results.PodErrors)).To(Equal(1), "%v", results.PodErrors)
	return len(results.NewNodeClaims)
}

// launchPending schedules all pending pods and launches the NodeClaims that they need.
func (k *karpenter) launchPending() (claims []*karpv1.NodeClaim) {
	k.T.Helper()
	results, err := k.scheduler.Schedule(k.ctx)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(errors.Join(slices.Collect(maps.Values(results.PodErrors))...)).NotTo(HaveOccurred())
	names, err := k.scheduler.CreateNodeClaims(k.ctx, results.NewNodeClaims)
	k.Expect(err).NotTo(HaveOccurred())
	for _, name := range names {
		claim := testenv.Reload(k.Env, &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}})
		// The first reconcile adds core's finalizer, the second launches.
		for range 2 {
			_, err := k.lifecycle.Reconcile(k.ctx, claim)
			k.Expect(err).NotTo(HaveOccurred())
			testenv.Reload(k.Env, claim)
		}
		claims = append(claims, claim)
	}
	return claims
}

// launchOne is launchPending for pods that need one NodeClaim.
func (k *karpenter) launchOne() *karpv1.NodeClaim {
	k.T.Helper()
	claims := k.launchPending()
	k.Expect(claims).To(HaveLen(1))
	return claims[0]
}

// expectScheduled checks that core plans no more claims for the pods.
func (k *karpenter) expectScheduled(claim *karpv1.NodeClaim) {
	k.T.Helper()
	k.cluster.UpdateNodeClaim(claim)
	results, err := k.scheduler.Schedule(k.ctx)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(results.NewNodeClaims).To(BeEmpty())
	k.Expect(results.PodErrors).To(BeEmpty())
}

// expectDrift checks why core replaces a claim's Node two hours later: it checks the instance types
// of Nodes that are older than an hour. It does not replace it if the reason is empty.
func (k *karpenter) expectDrift(claim *karpv1.NodeClaim, reason string) {
	k.T.Helper()
	k.Clock.Advance(2 * time.Hour)
	_, err := disruption.NewController(k.Clock, k.Kube, k.CloudProvider()).Reconcile(k.ctx, testenv.Reload(k.Env, claim))
	k.Expect(err).NotTo(HaveOccurred())
	drifted := testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeDrifted)
	if reason == "" {
		k.Expect(drifted).To(BeNil(), "with the labels %v", claim.Labels)
	} else {
		k.Expect(drifted).To(HaveField("Reason", reason))
	}
}

// A host that the class cannot use is not a domain over which pods are spread.
func TestScheduleTopologySpread(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(3))
	class := k.readyPool()
	class.Status.SelectedZones = testenv.Zones(2)
	k.Expect(k.Kube.Status().Update(k.ctx, class)).To(Succeed())
	for _, name := range []string{"a", "b", "c"} {
		k.pending(name, "1")
	}
	hosts := map[string]bool{}
	for _, claim := range k.launchPending() {
		k.Expect(claim.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue()).To(BeTrue())
		in := k.Intent(claim)
		k.Expect(claim.Status.ProviderID).To(Equal(in.ProviderID()))
		k.Expect(claim.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, in.Host))
		k.Expect(claim.Status.Allocatable.Cpu().Cmp(resource.MustParse("1"))).To(BeNumerically(">=", 0))
		hosts[in.Host] = true
	}
	k.Expect(hosts).To(HaveLen(2))
}

// Core deletes a claim whose Node does not register within 15 minutes of its creation, so
// a claim whose clone would wait too long is not created.
func TestScheduleWithCloneQueue(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Settings(func(s *instance.Settings) { s.CloneSlots, s.CloneRefuseAfter = 2, time.Nanosecond }))
	class := k.readyPool()
	k.pending("pod", "1")
	queued := []*karpv1.NodeClaim{k.Planned("a", class), k.Planned("b", class), k.Planned("c", class)}
	k.Expect(k.schedule()).To(Equal(1), "how long a clone takes is unknown")

	k.Expect(k.Launch(queued[0], class)).To(Succeed())
	k.Expect(k.Instances.Health.CloneTime(testenv.Region, "pve1", "local-lvm")).To(BeNumerically(">", 0))
	k.Eventually(func() int {
		k.Refresh()
		storage, _ := k.Inventory.View().Storage(testenv.Region, "pve1", "local-lvm")
		return storage.QueuedClones
	}).Should(Equal(2), "the other two")
	k.Expect(k.schedule()).To(BeZero())
	_, err := k.CloudProvider().Create(k.ctx, k.Claim("refused", class))
	k.Expect(err).To(MatchError(ContainSubstring("2 clones wait for storage local-lvm")))

	k.Expect(k.Launch(queued[1], class)).To(Succeed())
	k.Eventually(func() int {
		k.Refresh()
		return k.schedule()
	}).Should(Equal(1), "a slot is free again")
}

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }
