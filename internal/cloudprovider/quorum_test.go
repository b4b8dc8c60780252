// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudprovider_test

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestNoQuorum(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.Hosts(3), testenv.NoPolling())
	cp := provider(w, func(d *cloudprovider.Deps) { d.HostDriftAfter = 10 * time.Minute })
	class := w.Class()
	claim, changed := w.Launched("a", class), w.Launched("b", class)
	host := w.Intent(claim).Host
	w.Annotate(changed, map[string]string{v1alpha1.AnnotationNodeClassHash: "1", v1alpha1.AnnotationNodeClassHashVersion: v1alpha1.HashVersion})
	w.Expect(w.Sim.HostDown(host, "refused")).To(Succeed())
	w.Refresh()
	w.Clock.Advance(11 * time.Minute)
	w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftHostOffline))
	w.Expect(drift(w, cp, changed)).To(Equal(v1alpha1.DriftNodeClass))
	before, err := cp.List(t.Context())
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(before).To(HaveLen(2))

	w.Sim.SetQuorum(false)
	w.Expect(w.Inventory.RefreshAll(t.Context())).To(MatchError(proxmox.ErrNoQuorum))
	w.Expect(drift(w, cp, claim)).To(BeEmpty())
	w.Expect(drift(w, cp, changed)).To(BeEmpty(), "its VM could not be deleted")
	w.Expect(cp.List(t.Context())).To(HaveLen(2), "VMs count as deleted")
	_, err = cp.Create(t.Context(), w.Claim("c", class))
	w.Expect(corecloudprovider.IsInsufficientCapacityError(err)).To(BeTrue(), "%v", err)
	w.Expect(err).To(MatchError(ContainSubstring("no quorum")))

	w.Sim.SetQuorum(true)
	w.Eventually(func() error { return w.Inventory.RefreshAll(t.Context()) }).Should(Succeed())
	w.Expect(drift(w, cp, claim)).To(Equal(v1alpha1.DriftHostOffline))
	_, err = cp.Create(t.Context(), w.Claim("d", class))
	w.Expect(err).NotTo(HaveOccurred())
}
