// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/node/termination/terminator"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/reboot"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func resets(w *testenv.Env) int {
	return w.Sim.CountRequests("POST", "/nodes/{node}/qemu/{vmid}/status/reset")
}

// A reset is recorded before it is requested: core retries after each failed write.
func TestReboot(t *testing.T) {
	testenv.With().Test(t, func(w *testenv.Env, _ *testenv.Process) {
		claim := w.Launched("a", w.Class())
		refused := errors.New("refused")
		w.Process = w.StartProcess(testenv.Kube(interceptor.NewClient(w.Kube.(client.WithWatch), interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
				if refused != nil {
					return refused
				}
				return c.Patch(ctx, o, patch, options...)
			},
		})))
		cp := w.CloudProvider()
		for range 3 {
			w.Expect(cp.Reboot(w.Context(), testenv.Reload(w, claim), "op-1")).To(MatchError(refused))
		}
		w.Expect(resets(w)).To(BeZero(), "nothing was recorded")
		refused = nil
		w.Expect(cp.Reboot(w.Context(), claim, "op-1")).To(Succeed())
		w.Expect(resets(w)).To(Equal(1))

		w.DestroyByHand("pve1", w.Intent(claim).VMID)
		err := cp.Reboot(w.Context(), claim, "op-2")
		w.Expect(corecloudprovider.IsNodeClaimNotFoundError(err)).To(BeTrue(), "%v", err)
	})
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
		testenv.With().Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			claim := w.Launched("a", w.Class())
			test.fault.Method, test.fault.Path, test.fault.Count = "POST", "/nodes/*/qemu/*/status/reset", 1
			w.AddFault(test.fault)
			err := w.CloudProvider().Reboot(w.Context(), claim, "op")
			w.Expect(err).To(HaveOccurred())
			w.Expect(corecloudprovider.IsNodeRebootFailedError(err)).To(BeFalse(), "core retries it")
			stale := testenv.Reload(w, claim).DeepCopy()
			w.Expect(w.CloudProvider().Reboot(w.Context(), claim, "op")).To(Succeed())
			w.Expect(resets(w)).To(Equal(test.want))

			err = w.CloudProvider().Reboot(w.Context(), stale, "op")
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
		testenv.With(testenv.NoPolling()).Subtest(t, name, func(w *testenv.Env, _ *testenv.Process) {
			claim := w.Launched("a", w.Class())
			if fault.Status == 0 {
				writeNewerMark(w, claim)
			} else {
				fault.Method, fault.Path = cmp.Or(fault.Method, "POST"), cmp.Or(fault.Path, "/nodes/*/qemu/*/status/reset")
				w.AddFault(fault)
			}
			err := w.CloudProvider().Reboot(w.Context(), claim, "op")
			w.Expect(corecloudprovider.IsNodeRebootFailedError(err)).To(BeTrue(), "%v", err)
			w.Expect(err).To(MatchError(ContainSubstring("rebooting the VM")))
		})
	}
}

// A pod that may not be evicted delays core's reboot until the drain timeout, and stays on its Node:
// core leaves pods that remain then to the kubelet. Core replaces a Node whose reboot is refused.
func TestRebootNode(t *testing.T) {
	t.Parallel()
	for name, refused := range map[string]bool{"accepted": false, "refused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKarpenter(t)
			claim := k.Launched("a", k.Class())
			node := k.Node(claim)
			node.Status.NodeInfo.BootID = "boot-1"
			k.Expect(k.Kube.Status().Update(k.ctx, node)).To(Succeed())
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: k.Name, Name: "protected", Annotations: map[string]string{karpv1.DoNotDisruptAnnotationKey: "true"}},
				Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "web", Image: "web"}}},
			}
			k.Create(pod)
			policies := k.cp.RepairPolicies()
			policy := policies[len(policies)-1]
			k.Expect(policy.Action).To(Equal(corecloudprovider.RebootNode))
			k.Annotate(claim, map[string]string{karpv1.RebootTerminationGracePeriodAnnotationKey: policy.TerminationGracePeriod.String()})
			claim.StatusConditions().SetTrueWithReason(karpv1.ConditionTypeRebooting, karpv1.RebootReasonRequested, "test")
			k.Expect(k.Kube.Status().Update(k.ctx, claim)).To(Succeed())
			evictions := terminator.NewQueue(k.Clock, k.Kube, k.Events)
			core := reboot.NewController(k.Clock, k.Kube, k.cp, terminator.NewTerminator(k.Clock, k.Kube, evictions, k.Events), k.Events)
			reconcile := func() {
				_, err := core.Reconcile(k.ctx, testenv.Reload(k.Env, claim))
				k.Expect(err).NotTo(HaveOccurred())
			}
			if refused {
				k.AddFault(pvesim.Fault{Method: "POST", Path: "/nodes/*/qemu/*/status/reset", Status: 403, Message: "Permission check failed"})
			}

			reconcile()
			k.Expect(resets(k.Env)).To(BeZero(), "the drain continues")
			k.Clock.Advance(*policy.TerminationGracePeriod)
			reconcile()
			k.Expect(resets(k.Env)).To(Equal(1))
			k.Expect(testenv.Reload(k.Env, pod).DeletionTimestamp).To(BeNil())
			if refused {
				k.Expect(k.Events.Messages("RebootFailed")).To(ConsistOf(ContainSubstring("reboot rejected by the cloud provider: rebooting the VM")))
				k.Expect(k.IsDeleted(claim)).To(BeTrue())
			} else {
				k.Expect(testenv.Reload(k.Env, claim).StatusConditions().Get(karpv1.ConditionTypeRebooting).Reason).To(Equal(karpv1.RebootReasonIssued))
			}
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
	w.Expect(w.Client.UpdateVM(w.T.Context(), in.Host, in.VMID, proxmox.ConfigChange{Set: map[string]string{"description": newer}})).To(Succeed())
}
