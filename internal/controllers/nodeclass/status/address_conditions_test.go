// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func withNet0(source v1alpha1.AddressSource) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.VMInterface{{Name: "net0", Address4: &source}}}
	}
}

func TestReconcileAddressPoolExhausted(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	setTemplateZones(w, "region-1/pve1/9000")
	class := reconcileClass(w, w.Class(withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.5/24"})))
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionAddressesAvailable).IsTrue()).To(BeTrue())
	claim := w.Planned("a", class)
	class = reconcileClass(w, class)
	condition := class.StatusConditions().Get(v1alpha1.ConditionAddressesAvailable)
	w.Expect(condition.IsFalse()).To(BeTrue())
	w.Expect(condition.Reason).To(Equal(v1alpha1.ReasonAddressPoolExhausted))
	w.Expect(condition.Message).To(Equal("spec.network.interfaces[0].address4: all 1 addresses of 10.0.0.0/24 are taken"))
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), "%v", class.StatusConditions().Root())
	w.Instances.Planner.Release(string(claim.UID))
	w.Expect(reconcileClass(w, class).StatusConditions().Get(v1alpha1.ConditionAddressesAvailable).IsTrue()).To(BeTrue())

	class.Spec.Network = nil
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(reconcileClass(w, class).StatusConditions().Get(v1alpha1.ConditionAddressesAvailable)).To(BeNil(), "there is no condition without address pools")
}

func TestReconcileAddressPoolConflict(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	setTemplateZones(w, "region-1/pve1/9000")
	named := func(name string) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named(name) }
	}
	class := reconcileClass(w, w.NewClass(named("wide"), withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.0/16"})))
	isConsistent := func() bool {
		return reconcileClass(w, class).StatusConditions().Get(v1alpha1.ConditionAddressPoolsConsistent).IsTrue()
	}
	w.Expect(isConsistent()).To(BeTrue())

	shared := reconcileClass(w, w.NewClass(named("shared"), withNet0(v1alpha1.AddressSource{CIDR: "10.0.0.0/16", Ranges: []string{"10.0.7.0/24"}, Gateway: "10.0.0.2"})))
	w.Expect(isConsistent()).To(BeTrue(), "a subnet may be shared, and may have two routers")
	w.Expect(w.Kube.Delete(t.Context(), shared)).To(Succeed())

	narrow := reconcileClass(w, w.NewClass(named("narrow"), withNet0(v1alpha1.AddressSource{CIDR: "10.0.7.0/24"})))
	condition := reconcileClass(w, class).StatusConditions().Get(v1alpha1.ConditionAddressPoolsConsistent)
	w.Expect(condition.IsFalse()).To(BeTrue())
	w.Expect(condition.Reason).To(Equal(v1alpha1.ReasonSubnetsOverlap))
	w.Expect(condition.Message).To(Equal("spec.network.interfaces[0].address4 (10.0.0.0/16) and spec.network.interfaces[0].address4 of ProxmoxNodeClass \"" +
		narrow.Name + "\" (10.0.7.0/24) are different subnets on one network (bridge vmbr0 in region region-1): " +
		"use the same cidr and divide it with ranges, or subnets that do not overlap"))
	w.Expect(reconcileClass(w, class).StatusConditions().Root().IsTrue()).To(BeTrue(), "VMs still get addresses")

	w.Expect(w.Kube.Delete(t.Context(), narrow)).To(Succeed())
	w.Expect(isConsistent()).To(BeTrue())
}
