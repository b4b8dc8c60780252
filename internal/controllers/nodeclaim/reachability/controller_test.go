// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package reachability_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/reachability"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestRegionNotConfigured(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.OtherHosts(1))
	class := w.Class()
	a, b := w.Launched("a", class), w.Launched("b", class)
	var lines []string
	ctx := log.IntoContext(t.Context(), funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	check := func(ctx context.Context, c *reachability.Controller) {
		result, err := c.Reconcile(ctx)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(result.RequeueAfter).To(BeNumerically(">", 0))
	}
	check(ctx, reachability.NewController(w.Kube, w.Instances.VMs, w.Events))
	w.Expect(lines).To(BeEmpty())
	w.Expect(w.Events.Messages(v1alpha1.EventRegionNotConfigured)).To(BeEmpty())

	delete(w.Clients, testenv.Region)
	w.Restart(true)
	c := reachability.NewController(w.Kube, w.Instances.VMs, w.Events)
	for range 2 {
		check(ctx, c)
	}
	w.Expect(lines).To(HaveLen(1), "the same claims are logged once")
	w.Expect(lines[0]).To(And(ContainSubstring(testenv.Region), ContainSubstring(a.Name), ContainSubstring(b.Name)))
	w.Expect(w.Events.Reasons(a)).To(ContainElement(v1alpha1.EventRegionNotConfigured))
	w.Expect(w.Events.Messages(v1alpha1.EventRegionNotConfigured)).To(ContainElement(
		MatchRegexp(fmt.Sprintf("kubectl annotate nodeclaim %[1]s %[2]s=pve1; .*kubectl delete nodeclaim %[1]s --wait=false", b.Name, v1alpha1.AnnotationHostFenced))))
}

// A single failed poll does not make a forgotten annotation valid.
func TestHostFenceIgnoredDuringOutage(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	claim := w.Launched("a", w.Class())
	claim.Annotations[v1alpha1.AnnotationHostFenced] = w.Intent(claim).Host
	w.Disconnect()
	w.Expect(w.Inventory.Refresh(t.Context(), testenv.Region)).NotTo(Succeed())
	w.Expect(w.Instances.VMs.FenceIgnored(claim)).To(ContainSubstring("is online"))
	w.Expect(w.Inventory.Refresh(t.Context(), testenv.Region)).NotTo(Succeed())
	w.Expect(w.Instances.VMs.FenceIgnored(claim)).To(BeEmpty())
}

func TestHostFenceIgnored(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		// named is the annotation, with HOST for the host of the VM.
		named string
		down  bool
		cause string
	}{
		"online":     {"HOST", false, "host HOST is online"},
		"other_host": {"pve9", true, `it names host "pve9", but the VM was last seen on host "HOST"`},
		"empty":      {"", true, `it names host ""`},
		"offline":    {"HOST", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
			claim := w.Launched("a", w.Class())
			host := w.Intent(claim).Host
			claim.Annotations[v1alpha1.AnnotationHostFenced] = strings.ReplaceAll(test.named, "HOST", host)
			w.Expect(w.Kube.Update(t.Context(), claim)).To(Succeed())
			if test.down {
				w.Expect(w.Sim.HostDown(host, "refused")).To(Succeed())
				w.Refresh()
			}
			_, err := reachability.NewController(w.Kube, w.Instances.VMs, w.Events).Reconcile(t.Context())
			w.Expect(err).NotTo(HaveOccurred())
			if test.cause == "" {
				w.Expect(w.Events.Messages("HostFenceIgnored")).To(BeEmpty())
				return
			}
			w.Expect(w.Events.Messages("HostFenceIgnored")).To(ConsistOf(ContainSubstring(strings.ReplaceAll(test.cause, "HOST", host))))
		})
	}
}
