// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// The launch controller sees the intent before the plan that wrote it returns. It knows
// that nothing exists, and does not read it.
func TestLaunchBeforePlanReturns(t *testing.T) {
	t.Parallel()
	w := testenv.NewFake(t)
	claim := w.Claim("pool-abc", w.NodeClass)
	launched := false
	var p *testenv.Process
	p = w.StartProcess(testenv.NoPolling(), testenv.Kube(interceptor.NewClient(w.Kube.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, kube client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if err := kube.Patch(ctx, o, patch, opts...); err != nil || launched {
				return err
			}
			launched = true
			w.Sim.ResetRequests()
			w.Expect(p.Launch(w.Stored(claim), w.NodeClass)).To(Succeed())
			return nil
		},
	})))
	_, err := p.Instances.Planner.Plan(t.Context(), claim, w.NodeClass, plan.Options{})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(launched).To(BeTrue())
	w.Expect(w.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/config")).To(Equal(1), "to verify the owner after the clone")
	w.Expect(w.Sim.CountRequests("GET", "/nodes/{node}/qemu/{vmid}/status/current")).To(BeZero())
}
