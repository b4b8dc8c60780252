// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
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
// Other tests create NodeClaims in the same API server.
func TestMaintenance(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(2))
	controller := &maintenance.ConfigMap{Namespace: w.Name, Inventory: w.Inventory, Recorder: w.Events}
	at := []string{"--kubeconfig", kubeconfig(w), "--system-namespace", w.Name}
	maintained := func(args ...string) string {
		t.Helper()
		out, err := run(t, append(append([]string{"maintenance"}, args...), at...)...)
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(controller.Read(t.Context(), w.Kube)).To(Succeed())
		return out
	}
	usable := func(host string) bool {
		ok, _ := w.Inventory.View().Usable(testenv.Region, host)
		return ok
	}
	class := w.Class()
	claim := w.Claim("a", class, func(c *karpv1.NodeClaim) {
		c.Labels[corev1.LabelTopologyRegion], c.Labels[corev1.LabelTopologyZone] = testenv.Region, "pve1"
	})
	w.Claim("other", class, func(c *karpv1.NodeClaim) {
		c.Spec.NodeClassRef = &karpv1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
		c.Labels[corev1.LabelTopologyRegion], c.Labels[corev1.LabelTopologyZone] = "us-east-1", "us-east-1a"
	})
	pve1, pve2 := inventory.HostName{Region: testenv.Region, Host: "pve1"}.String(), inventory.HostName{Region: testenv.Region, Host: "pve2"}.String()
	w.Expect(maintained("list")).To(Equal("no host is in maintenance\n"))
	w.Expect(maintained("start", pve1, "--reason", "new disk")).To(And(ContainSubstring("maintenance of host "+pve1), MatchRegexp(`NodeClaims on it: [1-9]`)))
	class = testenv.Reload(w, class)
	class.Status.UnusableZones = []v1alpha1.UnusableZone{{Zone: pve2, Reason: "offline"}, {Zone: testenv.Region + "/pve8", Reason: "offline"}}
	w.Expect(w.Kube.Status().Update(t.Context(), class)).To(Succeed())
	w.Expect(maintained("start", pve2)).To(ContainSubstring("maintenance of host " + pve2))
	w.Expect(maintained("start", testenv.Region+"/pve8")).To(And(MatchRegexp("warning: no NodeClaim is on it; hosts with NodeClaims: .*"+pve1), Not(ContainSubstring("us-east-1"))))
	w.Expect(maintained("start", testenv.Region+"/pve9")).To(MatchRegexp("warning: no ProxmoxNodeClass lists host region-1/pve9, so its name may be wrong; hosts: .*" + pve1 + ".*" + pve2))
	w.Expect(usable("pve1") || usable("pve2")).To(BeFalse())
	w.Expect(maintained("list")).To(And(MatchRegexp(testenv.Region+` +pve1 +[1-9]\d* +new disk`), MatchRegexp(testenv.Region+` +pve2 +\d`), MatchRegexp(testenv.Region+` +pve9 +0`)))
	w.Expect(maintained("stop", pve1)).To(ContainSubstring(pve1 + " is in service"))
	w.Expect(usable("pve1")).To(BeTrue())
	w.Expect(usable("pve2")).To(BeFalse())

	createController(w, "karpenter")
	_, err := runIn(w, "maintenance", "start", pve1)
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(controller.Read(t.Context(), w.Kube)).To(Succeed())
	w.Expect(usable("pve1")).To(BeFalse(), "in the namespace of the controller's settings")
	w.Expect(maintained("stop", pve1)).To(ContainSubstring(pve1 + " is in service"))

	_, err = run(t, append([]string{"maintenance", "stop", pve1}, at...)...)
	w.Expect(err).To(MatchError(And(ContainSubstring(pve1+" is not in maintenance"), ContainSubstring("node-maintenance disable pve1"))))
	w.Annotate(claim, map[string]string{v1alpha1.AnnotationHostMaintenanceSince: "2026-11-15T12:00:00Z"})
	w.Expect(maintained("list")).To(MatchRegexp(testenv.Region + ` +pve1 +[1-9]\d* +HA maintenance`))
	w.Expect(w.Kube.Delete(t.Context(), claim)).To(Succeed())
	for _, host := range []string{"pve1", "/pve1", "home/", "home/pve1.example.com", "ho me/pve1"} {
		_, err := run(t, append([]string{"maintenance", "start", host}, at...)...)
		w.Expect(err).To(MatchError(And(ContainSubstring(host), ContainSubstring("want REGION/HOST"))))
	}
}
