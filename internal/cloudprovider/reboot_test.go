// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination/terminator"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/reboot"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
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

// A Node whose reboot Proxmox refuses is replaced at once: core would retry another error for
// minutes, with the Node drained.
func TestRebootRefused(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]pvesim.Fault{
		"missing_privilege":          {Status: 403, Message: "Permission check failed (/vms/20000, VM.PowerMgmt)"},
		"invalid_parameter":          {Status: 400, Message: "Parameter verification failed."},
		"root_only":                  {Status: 500, Message: "only root can reset this VM"},
		"missing_privilege_to_read":  {Method: "GET", Path: "/nodes/*/qemu/*/config", Status: 403, Message: "Permission check failed (/vms/20000, VM.Audit)"},
		"mark_of_a_newer_controller": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling())
			claim, core := rebootRequested(w, w.Kube)
			if fault.Status == 0 {
				writeNewerMark(w, claim)
			} else {
				fault.Method, fault.Path = cmp.Or(fault.Method, "POST"), cmp.Or(fault.Path, "/nodes/*/qemu/*/status/reset")
				w.AddFault(fault)
			}
			_, err := core.Reconcile(t.Context(), testenv.Reload(w, claim))
			w.Expect(err).NotTo(HaveOccurred())
			w.Expect(w.Events.Messages("RebootFailed")).To(ConsistOf(ContainSubstring("reboot rejected by the cloud provider: rebooting the VM")))
			err = w.Kube.Get(t.Context(), client.ObjectKeyFromObject(claim), claim)
			w.Expect(apierrors.IsNotFound(err) || !claim.DeletionTimestamp.IsZero()).To(BeTrue(), "core replaces it: %v", err)
		})
	}
}

// writeNewerMark replaces the mark of a claim's VM by that of a newer release.
func writeNewerMark(w *testenv.Env, claim *karpv1.NodeClaim) {
	w.T.Helper()
	in := w.Intent(claim)
	mark := ownership.Mark{VMID: in.VMID, KubeCluster: w.KubeCluster, ClaimUID: string(claim.UID)}.Comment()
	newer := strings.Replace(mark, `"v":1`, `"v":2`, 1)
	w.Expect(newer).NotTo(Equal(mark))
	cfg, err := w.Client.VMConfig(w.T.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.Client.UpdateVM(w.T.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"description": newer}, Digest: cfg.Digest})).To(Succeed())
}
