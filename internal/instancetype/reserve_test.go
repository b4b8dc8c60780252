// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// The reserve leaves three CPUs: instance types with four are not offered, but a VM of exact
// size with three is launched.
func TestListReserve(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClass("east/pve1/901", "east/pve2/902")
	v.change(func(r map[string]*proxmox.Resources) {
		r["east"].Guests = append(r["east"].Guests,
			proxmox.GuestRow{VMID: 100, Kind: proxmox.KindQEMU, Host: "pve1", Status: "running", CPUs: 10, MemoryBytes: gib},
			proxmox.GuestRow{VMID: 101, Kind: proxmox.KindQEMU, Host: "pve2", Status: "running", CPUs: 3, MemoryBytes: gib})
	})
	p, _ := newProvider(t, v)
	class.Spec.VMSize.Policy = v1alpha1.VMSizeExact
	claim := newClaim("2500m", "1Gi")
	claim.UID = "claim"
	offered := func(name string) map[string]bool {
		got := availability(find(t, p.List(class, ""), name))
		delete(got, "pve9")
		return got
	}
	g.Expect(offered("c1.4VCPU-8GB")).To(Equal(map[string]bool{"pve1": true, "pve2": true}), "without a reserve, four CPUs are offered on")
	class.Spec.PlacementStrategy.Reserve = v1alpha1.ReserveLargestHost
	g.Expect(offered("c1.4VCPU-8GB")).To(Equal(map[string]bool{"pve1": false, "pve2": false}), "four CPUs are offered on")
	g.Expect(offered("c1.2VCPU-4GB")).To(Equal(map[string]bool{"pve1": true, "pve2": true}), "two CPUs are offered on")
	const want = "if pve1 failed, its guests with 10 CPUs and 1.0 GiB would not fit on the other hosts with 9 CPUs"
	g.Expect(p.UnavailableReasons(class, "c1.4VCPU-8GB")[zone("east", "pve2")]).To(ContainSubstring(want))
	placed, err := placement.Choose(v.View(), must(p.Request(class, claim, instancetype.RequestOptions{})))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(placed.Need.CPUs).To(BeEquivalentTo(3))
	if kept, violation := p.CheckReserve(class); !kept || violation != "" {
		t.Errorf("the reserve is kept: %v, violated by %q", kept, violation)
	}

	v.change(func(r map[string]*proxmox.Resources) { r["east"].Guests[len(r["east"].Guests)-1].CPUs = 7 })
	g.Expect(offered("c1.1VCPU-2GB")).To(Equal(map[string]bool{"pve1": false, "pve2": false}), "another guest uses the reserve, but one CPU is offered on")
	g.Expect(placement.Choose(v.View(), must(p.Request(class, claim, instancetype.RequestOptions{})))).Error().To(HaveOccurred(),
		"another guest uses the reserve, but the claim was placed")
	if kept, violation := p.CheckReserve(class); !kept || !strings.HasPrefix(violation, "region east: if pve1 failed") {
		t.Errorf("the reserve is kept: %v, violated by %q", kept, violation)
	}
}
