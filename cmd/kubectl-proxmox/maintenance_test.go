// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// The commands write what the controller reads.
func TestMaintenance(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w := newEnv(t, testenv.Hosts(2))
		class := w.Class()
		claim := w.Claim("a", class, func(c *karpv1.NodeClaim) {
			c.Labels[corev1.LabelTopologyRegion], c.Labels[corev1.LabelTopologyZone] = "region-1", "pve1"
		})
		w.Claim("other", class, func(c *karpv1.NodeClaim) {
			c.Labels[corev1.LabelTopologyRegion], c.Labels[corev1.LabelTopologyZone] = "us-east-1", "us-east-1a"
			c.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
		})
		class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: "region-1/pve2", Reason: "offline"}, {Zone: "region-1/pve8", Reason: "offline"}}
		setConditions(w, class)
		maintained := func(args ...string) (string, error) {
			return runIn(w, append([]string{"maintenance", "--system-namespace", w.Name}, args...)...)
		}
		expectUsable := func(hosts ...string) {
			t.Helper()
			controller := &maintenance.ConfigMap{Namespace: w.Name, Inventory: w.Inventory, Recorder: w.Events}
			w.Expect(controller.Read(t.Context(), w.Kube)).To(Succeed())
			var usable []string
			for _, host := range []string{"pve1", "pve2"} {
				if state, _ := w.Inventory.View().Host(testenv.Region, host); state.IsAvailable(inventory.Launch) {
					usable = append(usable, host)
				}
			}
			w.Expect(usable).To(Equal(hosts))
		}

		w.Expect(maintained("list")).To(Equal("no host is in maintenance\n"))
		w.Expect(maintained("start", "region-1/pve1", "--reason", "new disk")).To(Equal("requested maintenance of host region-1/pve1\n" +
			"NodeClaims on it: 1; to see how many are left, run: kubectl proxmox maintenance list\n"))
		w.Expect(maintained("start", "region-1/pve2")).To(HavePrefix("requested maintenance of host region-1/pve2\n"))
		w.Expect(maintained("start", "region-1/pve8")).To(HaveSuffix("\nwarning: no NodeClaim is on it; hosts with NodeClaims: region-1/pve1\n"))
		w.Expect(maintained("start", "region-1/pve9")).To(HaveSuffix(
			"\nwarning: no ProxmoxNodeClass lists host region-1/pve9, so its name may be wrong; hosts: region-1/pve1, region-1/pve2, region-1/pve8\n"))
		expectUsable()
		w.Expect(maintained("list")).To(MatchRegexp(strings.ReplaceAll("^REGION HOST NODES LEFT REASON\n"+
			"region-1 pve1 1 new disk\nregion-1 pve2 0 \nregion-1 pve8 0 \nregion-1 pve9 0 \n$", " ", " +")))
		w.Expect(maintained("stop", "region-1/pve1")).To(Equal("host region-1/pve1 is in service\n"))
		expectUsable("pve1")

		createController(w, "karpenter")
		w.Expect(errorOf(runIn(w, "maintenance", "start", "region-1/pve1"))).NotTo(HaveOccurred())
		expectUsable() // in the namespace of the controller's settings
		w.Expect(errorOf(maintained("stop", "region-1/pve1"))).NotTo(HaveOccurred())

		w.Expect(errorOf(maintained("stop", "region-1/pve1"))).To(MatchError(And(
			ContainSubstring("region-1/pve1 is not in maintenance"), ContainSubstring("node-maintenance disable pve1"))))
		w.Annotate(claim, map[string]string{v1alpha1.AnnotationHostMaintenanceSince: "2026-11-15T12:00:00Z"})
		w.Expect(maintained("list")).To(MatchRegexp(`region-1 +pve1 +1 +HA maintenance`))
		for _, host := range []string{"pve1", "/pve1", "home/", "home/pve1.example.com", "ho me/pve1"} {
			w.Expect(errorOf(maintained("start", host))).To(MatchError(And(ContainSubstring(host), ContainSubstring("want REGION/HOST"))))
		}
	})
}
