// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/dynamicresources/deviceallocation"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"
	"sigs.k8s.io/karpenter/pkg/state/virtualpods"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// karpenter runs core's scheduler and lifecycle with the CloudProvider.
type karpenter struct {
	*testenv.Env
	ctx         context.Context
	cluster     *state.Cluster
	provisioner *provisioning.Provisioner
	lifecycle   *lifecycle.Controller
}

func newKarpenter(t *testing.T, options ...testenv.Option) *karpenter {
	t.Helper()
	w := testenv.New(t, options...)
	cp := provider(w, func(d *cloudprovider.Deps) { d.CapacityBuffers = true })
	cluster := state.NewCluster(w.Clock, w.Kube, cp)
	return &karpenter{
		Env: w, cluster: cluster,
		ctx: coreoptions.ToContext(t.Context(), &coreoptions.Options{
			CPURequests: 1000, IgnoreDRARequests: true,
			PreferencePolicy: coreoptions.PreferencePolicyRespect, MinValuesPolicy: coreoptions.MinValuesPolicyStrict,
			FeatureGates: coreoptions.FeatureGates{CapacityBuffer: true},
		}),
		provisioner: provisioning.NewProvisioner(w.Kube, w.Events, cp, cluster, w.Clock, deviceallocation.NewController(w.Kube), virtualpods.NewVirtualPodCache(w.Kube)),
		lifecycle:   lifecycle.NewController(w.Clock, w.Kube, cp, w.Events, cluster, nodepoolhealth.NewState(), nil),
	}
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

func TestScheduleTopologySpread(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.Hosts(3))
	k.readyPool()
	for _, name := range []string{"a", "b", "c"} {
		k.pending(name, "1")
	}
	claims := k.launchPending()
	k.Expect(claims).To(HaveLen(3))

	hosts := map[string]bool{}
	for _, claim := range claims {
		k.Expect(claim.StatusConditions().Get(karpv1.ConditionTypeLaunched).IsTrue()).To(BeTrue())
		in := k.Intent(claim)
		k.Expect(claim.Status.ProviderID).To(Equal(in.ProviderID()))
		k.Expect(claim.Labels).To(HaveKeyWithValue(corev1.LabelTopologyZone, in.Host))
		k.Expect(claim.Status.Allocatable.Cpu().Cmp(resource.MustParse("1"))).To(BeNumerically(">=", 0))
		hosts[in.Host] = true
	}
	k.Expect(hosts).To(HaveLen(3), "one VM on each host")
}

// A host that the class cannot use is not a domain over which pods are spread.
func TestScheduleTopologySpreadUsableHosts(t *testing.T) {
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
		hosts[k.Intent(claim).Host] = true
	}
	k.Expect(hosts).To(HaveLen(2), "two of the pods are on the same host")
}

// launchPending schedules all pending pods and launches the NodeClaims that they need.
func (k *karpenter) launchPending() (claims []*karpv1.NodeClaim) {
	k.T.Helper()
	results, err := k.provisioner.Schedule(k.ctx)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(errors.Join(slices.Collect(maps.Values(results.PodErrors))...)).NotTo(HaveOccurred())
	names, err := k.provisioner.CreateNodeClaims(k.ctx, results.NewNodeClaims)
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

// expectScheduled checks that core plans no more Claims for the pods.
func (k *karpenter) expectScheduled(claims []*karpv1.NodeClaim) {
	k.T.Helper()
	for _, claim := range claims {
		k.cluster.UpdateNodeClaim(claim)
	}
	results, err := k.provisioner.Schedule(k.ctx)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(results.NewNodeClaims).To(BeEmpty())
	k.Expect(results.PodErrors).To(BeEmpty())
}

func TestScheduleInsufficientCapacity(t *testing.T) {
	t.Parallel()
	k := newKarpenter(t, testenv.NoPolling())
	k.readyPool()
	k.pending("huge", "100")
	results, err := k.provisioner.Schedule(k.ctx)
	k.Expect(err).NotTo(HaveOccurred())
	k.Expect(results.NewNodeClaims).To(BeEmpty())
	k.Expect(results.PodErrors).To(HaveLen(1))
}
