// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func net0(source v1alpha1.AddressSource) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.InterfaceAddresses{{Name: "net0", Address4: &source}}}
	}
}

func TestAnEmptyPoolIsToldAndDoesNotStopTheClass(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	found(w, "region-1/pve1/9000")
	class := checked(w, w.Class(net0(v1alpha1.AddressSource{CIDR: "10.0.0.5/24"})))
	w.Expect(class.StatusConditions().Get(v1alpha1.ConditionAddressesAvailable).IsTrue()).To(BeTrue())
	claim := w.Planned("a", class)
	class = checked(w, class)
	condition := class.StatusConditions().Get(v1alpha1.ConditionAddressesAvailable)
	w.Expect(condition.IsFalse()).To(BeTrue())
	w.Expect(condition.Reason).To(Equal(v1alpha1.ReasonPoolExhausted))
	w.Expect(condition.Message).To(Equal("spec.network.interfaces[0].address4: all 1 addresses of 10.0.0.0/24 are taken"))
	w.Expect(class.StatusConditions().Root().IsTrue()).To(BeTrue(), "%v", class.StatusConditions().Root())
	w.Instances.Planner.Release(string(claim.UID))
	w.Expect(checked(w, class).StatusConditions().Get(v1alpha1.ConditionAddressesAvailable).IsTrue()).To(BeTrue())

	class.Spec.Network = nil
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(checked(w, class).StatusConditions().Get(v1alpha1.ConditionAddressesAvailable)).To(BeNil(), "without pools there is nothing to tell")
}

func TestPoolsOfTwoClassesThatDisagreeAboutTheSubnetAreTold(t *testing.T) {
	t.Parallel()
	w := testenv.New(t, testenv.NoPolling())
	found(w, "region-1/pve1/9000")
	named := func(name string) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) { c.Name = w.Named(name) }
	}
	class := checked(w, w.NewClass(named("wide"), net0(v1alpha1.AddressSource{CIDR: "10.0.0.0/16"})))
	agrees := func() bool {
		return checked(w, class).StatusConditions().Get(v1alpha1.ConditionAddressPoolsConsistent).IsTrue()
	}
	w.Expect(agrees()).To(BeTrue())

	shared := checked(w, w.NewClass(named("shared"), net0(v1alpha1.AddressSource{CIDR: "10.0.0.0/16", Ranges: []string{"10.0.7.0/24"}, Gateway: "10.0.0.2"})))
	w.Expect(agrees()).To(BeTrue(), "a subnet may be shared, and may have two routers")
	w.Expect(w.Kube.Delete(t.Context(), shared)).To(Succeed())

	narrow := checked(w, w.NewClass(named("narrow"), net0(v1alpha1.AddressSource{CIDR: "10.0.7.0/24"})))
	condition := checked(w, class).StatusConditions().Get(v1alpha1.ConditionAddressPoolsConsistent)
	w.Expect(condition.IsFalse()).To(BeTrue())
	w.Expect(condition.Reason).To(Equal(v1alpha1.ReasonSubnetsOverlap))
	w.Expect(condition.Message).To(Equal("spec.network.interfaces[0].address4 (10.0.0.0/16) and spec.network.interfaces[0].address4 of ProxmoxNodeClass \"" +
		narrow.Name + "\" (10.0.7.0/24) are different subnets on one network (bridge vmbr0 in region region-1): " +
		"use the same cidr and divide it with ranges, or subnets that do not overlap"))
	w.Expect(checked(w, class).StatusConditions().Root().IsTrue()).To(BeTrue(), "VMs get addresses all the same")

	w.Expect(w.Kube.Delete(t.Context(), narrow)).To(Succeed())
	w.Expect(agrees()).To(BeTrue())
}
