// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

const oneType = "c1.1VCPU-2GB"

func TestListPoolAffinity(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for affinity, want := range map[v1alpha1.PoolAffinity]map[string]bool{
		v1alpha1.PoolAffinityNone:          {"pve1": true, "pve2": true, "pve9": true},
		v1alpha1.PoolAffinitySameHost:      {"pve1": false, "pve2": true, "pve9": false},
		v1alpha1.PoolAffinitySeparateHosts: {"pve1": true, "pve2": false, "pve9": true},
	} {
		v, class := newViewer(), newNodeClassWithAllHosts()
		class.Spec.PlacementStrategy.PoolAffinity = affinity
		v.reserved = map[string]inventory.Reservation{"a": {ClaimUID: "a", NodePool: "db", Region: "east", Host: "pve2", VMID: 20001}}
		v.publish()
		p, _ := newProvider(t, v)
		g.Expect(availability(find(t, p.List(class, "db"), oneType))).To(Equal(want), "%s: NodePool db is offered", affinity)
		all := map[string]bool{"pve1": true, "pve2": true, "pve9": true}
		g.Expect(availability(find(t, p.List(class, "web"), oneType))).To(Equal(all), "%s: NodePool web, which has no VM, is offered", affinity)
		claim := newClaim("1m", "1Mi")
		claim.Labels["karpenter.sh/nodepool"] = "db"
		placed, err := placement.Choose(v.View(), must(p.Request(class, claim, instancetype.RequestOptions{})))
		g.Expect(err).NotTo(HaveOccurred(), "%s: the claim was placed on", affinity)
		g.Expect(want[placed.Zone.Host]).To(BeTrue(), "%s: the claim was placed on", affinity)
	}
}

// Clones have at least the size of the template's disk, also if the class has a smaller one.
func TestLargeTemplateDisk(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.configs[909].Options["scsi0"] = "local:base-1-disk-0,size=100G"
	v.publish()
	p, _ := newProvider(t, v)
	const disk = int64(100) << 30
	g.Expect(must(p.Request(class, newClaim("1m", "1Mi"), instancetype.RequestOptions{})).Options[0].Need.DiskBytes).To(Equal(disk))
	capacity := find(t, p.List(class, "web"), oneType).Capacity[corev1.ResourceEphemeralStorage]
	if got := capacity.Value(); got < disk*9/10 || got > disk {
		t.Errorf("a Node has %d bytes of ephemeral storage, want almost %d", got, disk)
	}
	class.Spec.KubeletConfiguration = newNodeClassWithKubelet(t, `{kubeReserved: {ephemeral-storage: 40Gi}}`).Spec.KubeletConfiguration
	g.Expect(p.CheckKubelet(class)).To(Succeed(), "40Gi of the disk cannot be reserved")
}

func TestLabelsArchitectureAndOS(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.resources["east"].Hosts[1].Arch = "aarch64"
	v.configs[909].Options["ostype"] = "win11"
	v.publish()
	p, _ := newProvider(t, v)
	for host, want := range map[string][2]string{"pve1": {"amd64", "linux"}, "pve2": {"arm64", "linux"}, "pve9": {"amd64", "windows"}} {
		region := map[string]string{"pve9": "west"}[host]
		if region == "" {
			region = "east"
		}
		labels := p.Labels(class, oneType, zone(region, host))
		g.Expect(labels[corev1.LabelArchStable]).To(Equal(want[0]), "a Node on %s", host)
		g.Expect(labels[corev1.LabelOSStable]).To(Equal(want[1]), "a Node on %s", host)
	}
	for key, want := range map[string]map[string][]string{
		corev1.LabelArchStable: {"arm64": {"pve2"}, "amd64": {"pve1", "pve9"}},
		corev1.LabelOSStable:   {"windows": {"pve9"}, "linux": {"pve1", "pve2"}},
	} {
		for value, zones := range want {
			got := hosts(must(p.Request(class, newClaim("1m", "1Mi", requirement(key, corev1.NodeSelectorOpIn, value)), instancetype.RequestOptions{})))
			g.Expect(strings.Join(got, ",")).To(Equal(strings.Join(zones, ",")), "%s %s may go", key, value)
		}
	}
}

func labelValue(m *dto.Metric, name string) string {
	for _, label := range m.GetLabel() {
		if label.GetName() == name {
			return label.GetValue()
		}
	}
	return ""
}

func TestOfferingMetrics(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.resources["east"].Hosts[0].Online = false
	v.publish()
	registry := prometheus.NewRegistry()
	p, err := instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Registerer: registry, VolumeAttachmentLimits: map[string]int{"csi.example": 24}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(find(t, p.List(class, ""), oneType).VolumeAttachmentLimits["csi.example"]).To(BeEquivalentTo(24), "the volume limits")
	if n, err := testutil.GatherAndCount(registry); err != nil || n != 3+20+20 {
		t.Errorf("%d series are exported (%v), want one for each of 3 Hosts and two for each of 20 types", n, err)
	}
	want := fmt.Sprintf(`
# HELP karpenter_proxmox_offerings_available Number of instance types that can be launched on a host. The nodepool is empty where it is the same for all.
# TYPE karpenter_proxmox_offerings_available gauge
karpenter_proxmox_offerings_available{host="pve1",nodeclass=%[1]q,nodepool="",region="east"} 0
karpenter_proxmox_offerings_available{host="pve2",nodeclass=%[1]q,nodepool="",region="east"} 19
karpenter_proxmox_offerings_available{host="pve9",nodeclass=%[1]q,nodepool="",region="west"} 19
`, class.Name)
	g.Expect(testutil.GatherAndCompare(registry, strings.NewReader(want), "karpenter_proxmox_offerings_available")).To(Succeed())
	families, err := registry.Gather()
	g.Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		for _, m := range family.GetMetric() {
			switch value := m.GetGauge().GetValue(); {
			case family.GetName() == "karpenter_proxmox_instance_type_available_hosts" && labelValue(m, "instance_type") == oneType && value != 2:
				t.Errorf("%v can be launched on %g hosts, want 2", m.GetLabel(), value)
			case family.GetName() == "karpenter_proxmox_instance_type_price" && value <= 0:
				t.Errorf("the price of %v is %g", m.GetLabel(), value)
			}
		}
	}
}
