// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testworld"
)

func net0(source v1alpha1.AddressSource) func(*v1alpha1.ProxmoxNodeClass) {
	return func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.InterfaceAddresses{{Name: "net0", Address4: &source}}}
	}
}

func TestAnEmptyPoolIsToldAndDoesNotStopTheClass(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
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
	w.Instances.Forget(string(claim.UID))
	w.Expect(checked(w, class).StatusConditions().Get(v1alpha1.ConditionAddressesAvailable).IsTrue()).To(BeTrue())

	class.Spec.Network = nil
	w.Expect(w.Kube.Update(t.Context(), class)).To(Succeed())
	w.Expect(checked(w, class).StatusConditions().Get(v1alpha1.ConditionAddressesAvailable)).To(BeNil(), "without pools there is nothing to tell")
}

func TestABadNetworkIsToldInWords(t *testing.T) {
	t.Parallel()
	w := testworld.New(t)
	found(w, "region-1/pve1/9000")
	for want, change := range map[string]func(*v1alpha1.ProxmoxNodeClass){
		`spec.network.interfaces[0].address4.ranges[0] "10.0.9.0/24" is not inside 10.0.0.0/24`: net0(v1alpha1.AddressSource{CIDR: "10.0.0.0/24", Ranges: []string{"10.0.9.0/24"}}),
		`spec.network.interfaces[0].name net7 is no interface of the template, which has net0`: func(c *v1alpha1.ProxmoxNodeClass) {
			c.Spec.Network = &v1alpha1.Network{Interfaces: []v1alpha1.InterfaceAddresses{{Name: "net7", Address4: &v1alpha1.AddressSource{Method: v1alpha1.AddressMethodDHCP}}}}
		},
	} {
		class := checked(w, w.NewClass(change))
		root := class.StatusConditions().Root()
		w.Expect(root.IsFalse()).To(BeTrue())
		w.Expect(class.Status.UnusableZones).To(ConsistOf(HaveField("Reason", ContainSubstring(want))))
		w.Expect(w.Kube.Delete(t.Context(), class)).To(Succeed())
	}
}
