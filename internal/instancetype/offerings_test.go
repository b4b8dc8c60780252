// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

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
		if got := availability(find(t, p.List(class, "db"), oneType)); !maps.Equal(got, want) {
			t.Errorf("%s: NodePool db is offered %v, want %v", affinity, got, want)
		}
		all := map[string]bool{"pve1": true, "pve2": true, "pve9": true}
		if got := availability(find(t, p.List(class, "web"), oneType)); !maps.Equal(got, all) {
			t.Errorf("%s: NodePool web, which has no VM, is offered %v", affinity, got)
		}
		claim := newClaim("1m", "1Mi")
		claim.Labels["karpenter.sh/nodepool"] = "db"
		placed, err := placement.Choose(v.View(), must(p.Request(class, claim, instancetype.RequestOptions{})))
		if err != nil || !want[placed.Zone.Host] {
			t.Errorf("%s: the claim was placed on %s (%v), which is not offered", affinity, placed.Zone, err)
		}
	}
}

// Clones have at least the size of the template's disk, also if the class has a smaller one.
func TestLargeTemplateDisk(t *testing.T) {
	t.Parallel()
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.configs[909].Options["scsi0"] = "local:base-1-disk-0,size=100G"
	v.publish()
	p, _ := newProvider(t, v)
	const disk = int64(100) << 30
	request := must(p.Request(class, newClaim("1m", "1Mi"), instancetype.RequestOptions{}))
	if got := request.Options[0].Need.DiskBytes; got != disk {
		t.Errorf("a VM needs %d bytes of storage, want %d", got, disk)
	}
	capacity := find(t, p.List(class, "web"), oneType).Capacity[corev1.ResourceEphemeralStorage]
	if got := capacity.Value(); got < disk*9/10 || got > disk {
		t.Errorf("a Node has %d bytes of ephemeral storage, want almost %d", got, disk)
	}
	class.Spec.KubeletConfiguration = newNodeClassWithKubelet(t, `{kubeReserved: {ephemeral-storage: 40Gi}}`).Spec.KubeletConfiguration
	if err := p.CheckKubelet(class); err != nil {
		t.Errorf("40Gi of the disk cannot be reserved: %v", err)
	}
}

func TestLabelsArchitectureAndOS(t *testing.T) {
	t.Parallel()
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
		if labels[corev1.LabelArchStable] != want[0] || labels[corev1.LabelOSStable] != want[1] {
			t.Errorf("a Node on %s is %s, %s, want %v", host, labels[corev1.LabelArchStable], labels[corev1.LabelOSStable], want)
		}
	}
	for key, want := range map[string]map[string][]string{
		corev1.LabelArchStable: {"arm64": {"pve2"}, "amd64": {"pve1", "pve9"}},
		corev1.LabelOSStable:   {"windows": {"pve9"}, "linux": {"pve1", "pve2"}},
	} {
		for value, zones := range want {
			got := hosts(must(p.Request(class, newClaim("1m", "1Mi", requirement(key, corev1.NodeSelectorOpIn, value)), instancetype.RequestOptions{})))
			if strings.Join(got, ",") != strings.Join(zones, ",") {
				t.Errorf("%s %s may go to %v, want %v", key, value, got, zones)
			}
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
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.resources["east"].Hosts[0].Online = false
	v.publish()
	registry := prometheus.NewRegistry()
	p, err := instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Registerer: registry, VolumeAttachmentLimits: map[string]int{"csi.example": 24}})
	if err != nil {
		t.Fatal(err)
	}
	if limits := find(t, p.List(class, ""), oneType).VolumeAttachmentLimits; limits["csi.example"] != 24 {
		t.Errorf("the volume limits are %v", limits)
	}
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
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "karpenter_proxmox_offerings_available"); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
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
