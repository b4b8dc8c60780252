// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"context"
	"errors"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination/terminator"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/reboot"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// readOnly is an API server that refuses patches while refuse is set.
type readOnly struct {
	client.Client
	refuse bool
}

func (r *readOnly) Patch(ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption) error {
	if r.refuse {
		return errors.New("refused")
	}
	return r.Client.Patch(ctx, object, patch, options...)
}

// rebootRequested returns a claim with a Node whose reboot core requested, and core's
// controller. The provider writes to the given API.
func rebootRequested(w *testenv.Env, api client.Client) (*karpv1.NodeClaim, *reboot.Controller) {
	w.T.Helper()
	claim := w.Launched("a", w.Class())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named("a")}, Spec: corev1.NodeSpec{ProviderID: claim.Status.ProviderID}}
	w.Create(node)
	node.Status.NodeInfo.BootID = "boot-1"
	w.Expect(w.Kube.Status().Update(w.T.Context(), node)).To(Succeed())
	w.Annotate(claim, map[string]string{karpv1.RebootTerminationGracePeriodAnnotationKey: "0s"})
	claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeRebooting, karpv1.RebootReasonRequested, "test")
	w.Expect(w.Kube.Status().Update(w.T.Context(), claim)).To(Succeed())

	p := w.StartProcess(testenv.Kube(api))
	cp := provider(w, func(d *cloudprovider.Deps) { d.Power = p.Instances.Power })
	return claim, reboot.NewController(w.Clock, w.Kube, cp, terminator.NewTerminator(w.Clock, w.Kube, terminator.NewQueue(w.Clock, w.Kube, w.Events), w.Events), w.Events)
}

func resets(w *testenv.Env) int {
	return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset")
}

// A reset is recorded before it is requested: core retries after each failed write.
func TestRebootNotRecorded(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	api := &readOnly{Client: w.Kube, refuse: true}
	claim, core := rebootRequested(w, api)
	for range 3 {
		_, err := core.Reconcile(t.Context(), testenv.Reload(w, claim))
		w.Expect(err).To(MatchError(ContainSubstring("refused")))
	}
	w.Expect(resets(w)).To(BeZero(), "nothing was recorded")

	api.refuse = false
	_, err := core.Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(resets(w)).To(Equal(1))
	w.Expect(testenv.Reload(w, claim).StatusConditions().Get(karpv1.ConditionTypeRebooting).Reason).To(Equal(karpv1.RebootReasonIssued))
}

// A pod that may not be evicted delays a reboot until the drain timeout, and stays on its Node:
// core leaves pods that remain then to the kubelet.
func TestRebootDrainTimeout(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	claim, core := rebootRequested(w, w.Kube)
	policies := provider(w, func(d *cloudprovider.Deps) { d.Repair.Drain = 5 * time.Minute }).RepairPolicies()
	policy := policies[len(policies)-1]
	w.Expect(policy.Action).To(Equal(corecloudprovider.RebootNode))
	w.Annotate(claim, map[string]string{karpv1.RebootTerminationGracePeriodAnnotationKey: policy.TerminationGracePeriod.String()})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: "protected", Annotations: map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}},
		Spec:       corev1.PodSpec{NodeName: w.Named("a"), Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}
	w.Create(pod)

	result, err := core.Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(result.RequeueAfter).To(BeNumerically(">", 0), "the drain continues")
	w.Expect(resets(w)).To(BeZero())

	w.Clock.Advance(*policy.TerminationGracePeriod)
	_, err = core.Reconcile(t.Context(), testenv.Reload(w, claim))
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(resets(w)).To(Equal(1))
	w.Expect(testenv.Reload(w, pod).DeletionTimestamp).To(BeNil())
}

// A reset whose outcome is unknown is not repeated; one that was refused is.
func TestRebootFailed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault pvesim.Fault
		want  int
	}{
		"outcome_unknown": {pvesim.Fault{DropAfter: true}, 1},
		"refused":         {pvesim.Fault{Status: 500, Message: "got no worker upid - start worker failed"}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t)
			claim, core := rebootRequested(w, w.Kube)
			test.fault.Method, test.fault.Path, test.fault.Count = "POST", "/nodes/*/qemu/*/status/reset", 1
			w.AddFault(test.fault)
			_, err := core.Reconcile(t.Context(), testenv.Reload(w, claim))
			w.Expect(err).To(HaveOccurred())
			stale := testenv.Reload(w, claim).DeepCopy()
			_, err = core.Reconcile(t.Context(), claim)
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(resets(w)).To(Equal(test.want))

			_, err = core.Reconcile(t.Context(), stale)
			w.Expect(resets(w)).To(Equal(test.want), "the cache does not show the reset yet: %v", err)
		})
	}
}
