// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// nodePool is a kit with a Deployment that runs only on its Nodes.
type nodePool struct {
	*env
	name string
	kit  *harness.Kit
}

// newNodePool creates a kit, which change may modify first.
func (e *env) newNodePool(t *testing.T, name string, change func(*harness.Kit)) *nodePool {
	t.Helper()
	kit, err := harness.NewKit(name, e.plane.Server)
	must(t, err)
	if suite.lab != nil {
		suite.lab.Adapt(kit)
	}
	kit.Pool.Spec.Disruption.ConsolidateAfter = karpv1.MustParseNillableDuration("1s")
	kit.Pool.Spec.Disruption.Budgets = []karpv1.Budget{{Nodes: "100%"}}
	if change != nil {
		change(kit)
	}
	must(t, kit.Apply(e.ctx, e.kube))
	return &nodePool{env: e, name: name, kit: kit}
}

// waitForReady waits until the NodePool is ready: core considers pods that were created earlier only ten seconds later.
func (p *nodePool) waitForReady(t *testing.T) {
	t.Helper()
	p.eventually(t, "NodePool "+p.name+" to be ready", func(g Gomega) {
		g.Expect(p.kube.Get(p.ctx, client.ObjectKeyFromObject(p.kit.Pool), p.kit.Pool)).To(Succeed())
		g.Expect(p.kit.Pool.StatusConditions().Get(status.ConditionReady).IsTrue()).To(BeTrue(), "%v", p.kit.Pool.Status.Conditions)
	})
}

// deployPods deploys pods that run only on this NodePool's Nodes.
func (p *nodePool) deployPods(t *testing.T, replicas int32, changes ...func(*appsv1.Deployment)) {
	t.Helper()
	p.waitForReady(t)
	d := harness.Deployment(p.name, replicas)
	d.Spec.Template.Spec.NodeSelector = map[string]string{karpv1.NodePoolLabelKey: p.name}
	for _, taint := range p.kit.Pool.Spec.Template.Spec.Taints {
		d.Spec.Template.Spec.Tolerations = append(d.Spec.Template.Spec.Tolerations, corev1.Toleration{
			Key: taint.Key, Value: taint.Value, Operator: corev1.TolerationOpEqual, Effect: taint.Effect,
		})
	}
	for _, change := range changes {
		change(d)
	}
	must(t, p.kube.Create(p.ctx, d))
}

// onePerNode spreads the pods of a Deployment over as many Nodes.
func onePerNode(d *appsv1.Deployment) {
	d.Spec.Template.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{LabelSelector: d.Spec.Selector, TopologyKey: corev1.LabelHostname}},
	}}
}

// onePerHost spreads the pods of a Deployment over hosts.
func onePerHost(d *appsv1.Deployment) {
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: d.Spec.Selector,
	}}
}

// oneNode launches a Node for a pod.
func (p *nodePool) oneNode(t *testing.T) (*karpv1.NodeClaim, *corev1.Node) {
	t.Helper()
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", p.settled)
	return claim, p.node(NewWithT(t), claim)
}

// scale changes the number of pods and waits until they are ready.
func (p *nodePool) scale(t *testing.T, replicas int) {
	t.Helper()
	must(t, harness.Scale(p.ctx, p.kube, p.name, int32(replicas)))
	p.waitForPods(t, replicas)
}

// patch changes an object of the kit.
func (p *nodePool) patch(t *testing.T, object client.Object, patch string) {
	t.Helper()
	must(t, p.kube.Patch(p.ctx, object, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// claims returns the NodePool's NodeClaims.
func (p *nodePool) claims(g Gomega) []karpv1.NodeClaim {
	list := &karpv1.NodeClaimList{}
	g.Expect(p.kube.List(p.ctx, list, client.MatchingLabels{karpv1.NodePoolLabelKey: p.name})).To(Succeed())
	return list.Items
}

// waitForPods waits until all pods of the Deployment are ready.
func (p *nodePool) waitForPods(t *testing.T, want int) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("%d running pods of %s", want, p.name), func(g Gomega) {
		pods, err := harness.Pods(p.ctx, p.kube, p.name)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(HaveLen(want))
		for i := range pods {
			g.Expect(harness.PodReady(&pods[i])).To(BeTrue(), "pod %s is not ready", pods[i].Name)
		}
	})
}

// waitForClaim waits until the NodePool has exactly one NodeClaim that meets the condition.
func (p *nodePool) waitForClaim(t *testing.T, what string, is func(*karpv1.NodeClaim) error) *karpv1.NodeClaim {
	t.Helper()
	return &p.waitForClaims(t, 1, what, is)[0]
}

func (p *nodePool) waitForClaims(t *testing.T, want int, what string, is func(*karpv1.NodeClaim) error) (claims []karpv1.NodeClaim) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("%d claims of %s: %s", want, p.name, what), func(g Gomega) {
		claims = p.claims(g)
		g.Expect(claims).To(HaveLen(want))
		for i := range claims {
			g.Expect(is(&claims[i])).To(Succeed())
		}
	})
	return claims
}

// launched returns an error unless the VM runs.
func (e *env) launched(claim *karpv1.NodeClaim) error {
	vm, err := e.api.VMOf(e.ctx, claim)
	if err != nil || vm.Status != "running" {
		return fmt.Errorf("VM of claim %s does not run: %+v, %w", claim.Name, vm, err)
	}
	return nil
}

// settled returns an error unless the Node is initialized, the launch is completed and the
// boot drive was deleted. After that, the controller does not change the VM.
func (e *env) settled(claim *karpv1.NodeClaim) error {
	if c := claim.StatusConditions().Get(karpv1.ConditionTypeInitialized); !c.IsTrue() {
		return fmt.Errorf("claim %s is not initialized: %s", claim.Name, c.Message)
	}
	vm, err := e.api.VMOf(e.ctx, claim)
	if mark, _ := ownership.Read(vm.Notes()); err != nil || mark.Boot != nil || mark.Applied == nil || len(mark.Applied.Pending) > 0 {
		return fmt.Errorf("VM of claim %s is not settled: %s, %w", claim.Name, vm.Notes(), err)
	}
	return nil
}

// hasIntent returns an error unless the VM is planned.
func hasIntent(claim *karpv1.NodeClaim) error {
	_, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	return err
}

// node returns a NodeClaim's Node.
func (e *env) node(g Gomega, claim *karpv1.NodeClaim) *corev1.Node {
	node := &corev1.Node{}
	g.Expect(e.kube.Get(e.ctx, client.ObjectKey{Name: claim.Status.NodeName}, node)).To(Succeed())
	return node
}

// waitForNoTaints waits until a NodeClaim's Node has no taints. Kubernetes can remove that of a Node
// that was not ready after Karpenter has initialized it.
func (e *env) waitForNoTaints(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	e.eventually(t, "node "+claim.Name+" to have no taints", func(g Gomega) { g.Expect(e.node(g, claim).Spec.Taints).To(BeEmpty()) })
}

// waitForReboot waits until the same Node is ready after another boot.
func (e *env) waitForReboot(t *testing.T, claim *karpv1.NodeClaim, was *corev1.Node) {
	t.Helper()
	e.eventually(t, "node "+was.Name+" to be Ready after another boot", func(g Gomega) {
		node := e.node(g, claim)
		g.Expect(node.UID).To(Equal(was.UID))
		g.Expect(node.Status.NodeInfo.BootID).NotTo(Equal(was.Status.NodeInfo.BootID))
		g.Expect(harness.NodeReady(node)).To(BeTrue())
	})
}

// vms returns the NodePool's VMs.
func (p *nodePool) vms(g Gomega) []harness.Guest {
	return slices.DeleteFunc(p.guests(g), func(vm harness.Guest) bool {
		return !vm.OwnedBy(p.cluster) || !strings.Contains(vm.Notes(), "- NodePool: "+p.name+"\n")
	})
}

func (e *env) guests(g Gomega) []harness.Guest {
	guests, err := e.api.Guests(e.ctx)
	g.Expect(err).NotTo(HaveOccurred())
	return guests
}

// guest returns the guest with a VMID. The assertion fails if there is none.
func (e *env) guest(g Gomega, vmid int) harness.Guest {
	guests := e.guests(g)
	i := slices.IndexFunc(guests, func(guest harness.Guest) bool { return guest.VMID == vmid })
	g.Expect(i).To(BeNumerically(">=", 0), "VM %d not found", vmid)
	return guests[i]
}

// vmOf returns the VM of a NodeClaim.
func (e *env) vmOf(g Gomega, claim *karpv1.NodeClaim) harness.Guest {
	vm, err := e.api.VMOf(e.ctx, claim)
	g.Expect(err).NotTo(HaveOccurred())
	return vm
}

// boots returns how often the VM of a NodeClaim was started.
func (e *env) boots(claim *karpv1.NodeClaim) int {
	return len(e.proxmox.BootRecorder.BootsOf(string(claim.UID)))
}

// waitForDeletion waits until a NodeClaim is deleted.
func (e *env) waitForDeletion(t *testing.T, claim *karpv1.NodeClaim) {
	t.Helper()
	// The controller waits two minutes before it considers the VM of a new claim missing.
	e.within(t, 2*time.Minute+timeout(), "claim "+claim.Name+" to be deleted", func(g Gomega) {
		g.Expect(e.kube.Get(e.ctx, client.ObjectKeyFromObject(claim), &karpv1.NodeClaim{})).To(MatchError(apierrors.IsNotFound, "IsNotFound"))
	})
}

// deleteClaims deletes the NodePool's NodeClaims without waiting for consolidation, and waits until nothing of them remains.
func (p *nodePool) deleteClaims(t *testing.T) {
	t.Helper()
	p.scale(t, 0) // otherwise Karpenter creates another one
	var all []karpv1.NodeClaim
	p.eventually(t, "the claims of "+p.name+" to be deleted", func(g Gomega) {
		// If Karpenter sees the deleted claim before the deleted pod, it still creates another one.
		left := p.claims(g)
		for i := range left {
			g.Expect(client.IgnoreNotFound(p.kube.Delete(p.ctx, &left[i]))).To(Succeed())
		}
		all = append(all, left...)
		g.Expect(left).To(BeEmpty())
	})
	p.waitUntilGone(t, all...)
}

// waitUntilGone waits until nothing of the NodePool remains in Proxmox, and no claim, Node, ISO, disk or join token in all.
func (p *nodePool) waitUntilGone(t *testing.T, claims ...karpv1.NodeClaim) {
	t.Helper()
	p.eventually(t, "everything of "+p.name+" to be deleted", func(g Gomega) {
		g.Expect(p.claims(g)).To(BeEmpty())
		g.Expect(p.vms(g)).To(BeEmpty())
		nodes := &corev1.NodeList{}
		g.Expect(p.kube.List(p.ctx, nodes, client.MatchingLabels{karpv1.NodePoolLabelKey: p.name})).To(Succeed())
		g.Expect(nodes.Items).To(BeEmpty())
		p.expectNoBootData(g, claims...)
	})
}

// expectNoBootData fails if an ISO, disk or join token of the NodeClaims exists.
func (e *env) expectNoBootData(g Gomega, claims ...karpv1.NodeClaim) {
	volumes, err := e.api.Volumes(e.ctx)
	g.Expect(err).NotTo(HaveOccurred())
	tokens, err := harness.JoinTokens(e.ctx, e.kube)
	g.Expect(err).NotTo(HaveOccurred())
	for _, claim := range claims {
		g.Expect(volumes).NotTo(ContainElement(HaveField("ID", ContainSubstring(string(claim.UID)))))
		g.Expect(tokens).NotTo(ContainElement(HaveField("Labels", ContainElement(string(claim.UID)))))
	}
}

// waitForEvent waits for an event about an object.
func (e *env) waitForEvent(t *testing.T, object, reason string) {
	t.Helper()
	e.eventually(t, "event "+reason+" of "+object, func(g Gomega) {
		events := &corev1.EventList{}
		g.Expect(e.kube.List(e.ctx, events)).To(Succeed())
		g.Expect(slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == object && e.Reason == reason })).To(BeTrue())
	})
}
