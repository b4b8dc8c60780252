// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestReconcileAddressPoolExhausted(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{class: withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.5/24"})}.newClass(t)
		available := func() string {
			return nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionAddressesAvailable)
		}
		w.Expect(available()).To(HavePrefix("True"))
		claim := w.Planned("a", class)
		w.Expect(available()).To(Equal("False AddressPoolExhausted: spec.network.interfaces[0].address4: all 1 addresses of 10.0.0.0/24 are taken"))
		w.Expect(isReady(class)).To(BeTrue())
		w.Instances.Planner.Release(string(claim.UID))
		w.Expect(available()).To(HavePrefix("True"))

		testenv.Modify(w, class, func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.Network = nil })
		w.Expect(available()).To(BeEmpty(), "there is no condition without address pools")
	})
}

func TestReconcileAddressPoolConflict(t *testing.T) {
	testenv.Simulated(t, func(t *testing.T) {
		w, class := checkCase{class: withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.0/16"})}.newClass(t)
		consistent := func() string {
			return nodeClassStatusCondition(nodeClassStatusReconcileClass(w, class), v1alpha1.ConditionAddressPoolsConsistent)
		}
		another := func(source v1alpha1.AddressSource) *v1alpha1.ProxmoxNodeClass {
			return nodeClassStatusReconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Name = "another" }, withNet0(source)))
		}
		remove := func(class *v1alpha1.ProxmoxNodeClass) {
			w.Expect(w.Kube.Delete(t.Context(), class)).To(Succeed())
			w.Expect(nodeclass.NewController(w.Kube, w.Events, statusDeps(w)).Reconcile(t.Context(), testenv.Reload(w, class))).Error().NotTo(HaveOccurred())
		}
		w.Expect(consistent()).To(HavePrefix("True"))

		shared := another(v1alpha1.AddressSource{CIDR: "10.0.0.0/16", Ranges: []string{"10.0.7.0/24"}, Gateway: "10.0.0.2"})
		w.Expect(consistent()).To(HavePrefix("True"), "a subnet may be shared, and may have two routers")
		remove(shared)

		narrow := another(v1alpha1.AddressSource{CIDR: "10.0.7.0/24"})
		w.Expect(consistent()).To(Equal("False SubnetsOverlap: spec.network.interfaces[0].address4 (10.0.0.0/16) and spec.network.interfaces[0].address4 " +
			`of ProxmoxNodeClass "another" (10.0.7.0/24) are different subnets on one network (bridge vmbr0 in region region-1): ` +
			"use the same cidr and divide it with ranges, or subnets that do not overlap"))
		w.Expect(isReady(class)).To(BeTrue(), "VMs still get addresses")

		remove(narrow)
		w.Expect(consistent()).To(HavePrefix("True"))
	})
}
