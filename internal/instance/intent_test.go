// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"net/netip"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// newClaim returns a Claim as core stores it.
func newClaim() *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "default-abc", UID: "uid", Annotations: map[string]string{}}}
	claim.Status.ProviderID = "proxmox://r/20001"
	return claim
}

func TestReadIntent(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	claim := newClaim()
	claim.Labels = map[string]string{corev1.LabelTopologyZone: "pve1", corev1.LabelInstanceTypeStable: "t1.2VCPU-6GB"}
	claim.Annotations[v1alpha1.AnnotationHolds] = `{"addresses":["10.0.0.5","fd00::5"],"machine":"db-1","devices":["gpu"],"storage":"fast"}`
	in, ok := ReadIntent(claim)
	g.Expect(ok).To(BeTrue())
	g.Expect(in).To(And(HaveField("VMID", 20001), HaveField("Host", "pve1"), HaveField("Parked", true), HaveField("Known", false)), "it has no capacity")
	claim.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("6Gi")}
	in, _ = ReadIntent(claim)
	g.Expect(in.Reservation(claim)).To(And(
		HaveField("Amount.CPUs", 2), HaveField("Amount.MemoryBytes", int64(6<<30)), HaveField("Devices", []string{"gpu"}), HaveField("Machine", "db-1"), HaveField("Storage", "fast"),
		HaveField("Addresses", ConsistOf(netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")))))
	claim.Annotations[v1alpha1.AnnotationHolds] = "{"
	in, ok = ReadIntent(claim)
	g.Expect(ok && in.Machine == "").To(BeTrue(), "holds that cannot be read hold nothing")
	claim.Status.ProviderID = "aws:///zone/i-1"
	_, ok = ReadIntent(claim)
	g.Expect(ok).To(BeFalse())
}

// Whatever an annotation contains, it neither changes the VM nor ends the controller.
func FuzzReadHolds(f *testing.F) {
	for _, seed := range []string{`null`, `[]`, ``, `{"addresses":["fe80::1%eth0","10.0.0.1"],"machine":"m"}`, `{"addresses":[""],"devices":[null]}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		claim := newClaim()
		claim.Annotations[v1alpha1.AnnotationHolds] = raw
		in, ok := ReadIntent(claim)
		if !ok || in.ProviderID() != claim.Status.ProviderID {
			t.Errorf("the VM is %s", in.ProviderID())
		}
		_ = in.Reservation(claim)
	})
}
