// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
)

func TestMarkUnavailable(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	class := newNodeClassWithAllHosts()
	p, clock := newProvider(t, newViewer())
	on := func(typ, host string) bool { return availability(find(t, p.List(class, ""), typ))[host] }
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("east", "pve1"), InstanceType: "c1.1VCPU-2GB"}, "the storage is full", 3*time.Minute)
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("east", "pve1"), InstanceType: "c1.1VCPU-2GB"}, "a shorter one", time.Minute) // never shortens
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("west", "pve9")}, "no quorum", time.Minute)
	if on("c1.1VCPU-2GB", "pve1") || !on("c1.2VCPU-4GB", "pve1") || !on("c1.1VCPU-2GB", "pve2") {
		t.Error("exactly the marked type must be unavailable on pve1")
	}
	g.Expect(on("c1.1VCPU-2GB", "pve9")).To(BeFalse(), "all types must be unavailable on pve9")
	g.Expect(on("m1.4VCPU-32GB", "pve9")).To(BeFalse(), "all types must be unavailable on pve9")
	reasons := p.UnavailableReasons(class, "c1.1VCPU-2GB")
	if r := reasons[zone("east", "pve1")]; !strings.Contains(r, "the storage is full") || !strings.Contains(r, "2026-11-15T08:03:00Z") {
		t.Errorf("the reason is %q, want it with its expiry", r)
	}
	g.Expect(reasons).To(HaveLen(2))
	g.Expect(p.UnavailableReasons(class, "nano")).To(BeNil())
	clock.Step(time.Minute)
	g.Expect(on("c1.1VCPU-2GB", "pve9")).To(BeTrue(), "after a minute pve9 must be available, pve1 not")
	g.Expect(on("c1.1VCPU-2GB", "pve1")).To(BeFalse(), "after a minute pve9 must be available, pve1 not")
	clock.Step(2 * time.Minute)
	g.Expect(on("c1.1VCPU-2GB", "pve1")).To(BeTrue(), "after three minutes pve1 must be available")
	g.Expect(p.UnavailableReasons(class, "c1.1VCPU-2GB")).To(BeEmpty(), "after three minutes pve1 must be available")
}

func TestMarkUnavailableForOneNodeClass(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	p, _ := newProvider(t, newViewer())
	broken, healthy := newNodeClassWithAllHosts(), newNodeClassWithAllHosts()
	broken.Name, healthy.Name = "broken", "healthy"
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("east", "pve1"), NodeClass: "broken"}, "the template has no bridge", time.Minute)
	g.Expect(availability(find(t, p.List(broken, ""), "c1.1VCPU-2GB"))["pve1"]).To(BeFalse(), "the broken class is still available on pve1")
	g.Expect(availability(find(t, p.List(healthy, ""), "c1.1VCPU-2GB"))["pve1"]).To(BeTrue(), "the healthy class lost pve1")
}
