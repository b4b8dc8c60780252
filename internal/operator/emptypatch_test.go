// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator_test

import (
	"context"
	"os"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/lifecycle"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/state/nodepoolhealth"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// Core's lifecycle controller patches the metadata of a NodeClaim also if only its status changed.
func TestWithoutEmptyPatches(t *testing.T) {
	t.Parallel()
	w := testenv.NewWithAPIServer(t, testenv.NoPolling())
	var sent []string
	record := func(endpoint string, object client.Object, patch client.Patch) {
		body, err := patch.Data(object)
		w.Expect(err).NotTo(HaveOccurred())
		if _, ok := object.(*karpv1.NodeClaim); ok {
			sent = append(sent, endpoint+" "+string(body))
		}
	}
	kube := operator.WithoutEmptyPatches(interceptor.NewClient(w.Kube.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption) error {
			record("object", object, patch)
			return c.Patch(ctx, object, patch, options...)
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, resource string, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
		) error {
			record(resource, object, patch)
			return c.SubResource(resource).Patch(ctx, object, patch, options...)
		},
	}))
	cp := w.CloudProvider()
	core := lifecycle.NewController(w.Clock, kube, cp, w.Events, state.NewCluster(w.Clock, kube, cp), nodepoolhealth.NewState(), nil)
	claim := w.Claim("a", w.Class())
	condition := func(name string) bool { return claim.StatusConditions().Get(name).IsTrue() }
	reconcile := func() []string {
		w.T.Helper()
		sent = nil
		_, err := core.Reconcile(t.Context(), testenv.Reload(w, claim))
		w.Expect(err).NotTo(HaveOccurred())
		testenv.Reload(w, claim)
		return sent
	}
	w.Expect(reconcile()).To(HaveExactElements(ContainSubstring("finalizers"), ContainSubstring(v1alpha1.AnnotationLaunchedBy), HavePrefix("status")))
	w.Expect(condition(karpv1.ConditionTypeLaunched)).To(BeTrue())

	w.Node(claim)
	w.Expect(reconcile()).To(HaveExactElements(HavePrefix("status")))
	w.Expect(condition(karpv1.ConditionTypeRegistered)).To(BeTrue())

	w.Expect(kube.Status().Patch(t.Context(), claim, client.MergeFrom(claim.DeepCopy()))).To(Succeed())
	w.Expect(sent).To(HaveLen(1), "nothing changed")
}
