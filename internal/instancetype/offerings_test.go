// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

const oneType = "c1.1VCPU-2GB"

func TestListPoolAffinity(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for affinity, want := range map[v1alpha1.PoolAffinity]string{
		v1alpha1.PoolAffinityNone: "pve1 pve2 pve9", v1alpha1.PoolAffinitySameHost: "!pve1 pve2 !pve9", v1alpha1.PoolAffinitySeparateHosts: "pve1 !pve2 pve9",
	} {
		v, class := newViewer(), newNodeClassWithAllHosts()
		class.Spec.PlacementStrategy.PoolAffinity = affinity
		v.reserved = map[string]inventory.Reservation{"a": {ClaimUID: "a", NodePool: "db", Region: "east", Host: "pve2", VMID: 20001}}
		v.publish()
		p, _ := newProvider(t, v)
		g.Expect(offered(find(t, p.List(class, "db"), oneType))).To(Equal(want), "%s: NodePool db is offered", affinity)
		g.Expect(offered(find(t, p.List(class, "web"), oneType))).To(Equal("pve1 pve2 pve9"), "%s: NodePool web, which has no VM", affinity)
		claim := newClaim("1m", "1Mi")
		claim.Labels["karpenter.sh/nodepool"] = "db"
		placed, err := choose(v, p, class, claim)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.Fields(want)).To(ContainElement(placed.Zone.Host), "%s: the claim was placed", affinity)
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
	g.Expect(requestFor(p, class, newClaim("1m", "1Mi")).Options[0].Need.DiskBytes).To(Equal(disk))
	g.Expect(find(t, p.List(class, "web"), oneType).Capacity.StorageEphemeral().Value()).To(BeNumerically("~", disk*95/100, disk/20))
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
	for z, want := range map[placement.Zone][]string{
		zone("east", "pve1"): {"amd64", "linux"}, zone("east", "pve2"): {"arm64", "linux"}, zone("west", "pve9"): {"amd64", "windows"},
	} {
		labels := p.Labels(class, oneType, z)
		g.Expect([]string{labels[corev1.LabelArchStable], labels[corev1.LabelOSStable]}).To(Equal(want), "a Node in %s", z)
	}
	for value, want := range map[string]struct {
		key   string
		hosts []string
	}{
		"arm64": {corev1.LabelArchStable, []string{"pve2"}}, "amd64": {corev1.LabelArchStable, []string{"pve1", "pve9"}},
		"windows": {corev1.LabelOSStable, []string{"pve9"}}, "linux": {corev1.LabelOSStable, []string{"pve1", "pve2"}},
	} {
		claim := newClaim("1m", "1Mi", requirement(want.key, corev1.NodeSelectorOpIn, value))
		g.Expect(hosts(requestFor(p, class, claim))).To(Equal(want.hosts), value)
	}
}

func TestOfferingMetrics(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v, class := newViewer(), newNodeClassWithAllHosts()
	v.resources["east"].Hosts[0].Online = false
	v.publish()
	registry := prometheus.NewRegistry()
	p := must(instancetype.New(instancetype.Deps{Inventory: v, Pricing: pricing(), Registerer: registry, VolumeAttachmentLimits: map[string]int{"csi.example": 24}}))
	g.Expect(find(t, p.List(class, ""), oneType).VolumeAttachmentLimits["csi.example"]).To(BeEquivalentTo(24), "the volume limits")
	g.Expect(testutil.GatherAndCount(registry)).To(Equal(3+20+20), "one for each of 3 Hosts and two for each of 20 types")
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
			case family.GetName() == "karpenter_proxmox_instance_type_available_hosts" && strings.Contains(m.String(), oneType):
				g.Expect(value).To(Equal(2.0), m.String())
			case family.GetName() == "karpenter_proxmox_instance_type_price":
				g.Expect(value).To(BeNumerically(">", 0), m.String())
			}
		}
	}
}

// A Node reports the size of the file system with the directory of the kubelet.
func TestCapacityWithKubeletDisk(t *testing.T) {
	t.Parallel()
	p, _ := newProvider(t, newViewer())
	for mountPath, want := range map[string]int64{
		"/var/lib/kubelet": 200, "/var/lib": 200, "/var": 200,
		"/var/lib/containerd": 100, "/var/lib/kubelet-data": 100, "/srv": 100, "": 100,
	} {
		class := newNodeClassWithAllHosts()
		class.Spec.BootDevice.Size = "100Gi"
		class.Spec.Disks = []v1alpha1.Disk{{Name: "other", Size: "1Ti"}, {Name: "data", Size: "200Gi", MountPath: mountPath}}
		it := find(t, p.List(class, ""), "t1.2VCPU-6GB")
		NewWithT(t).Expect(it.Capacity.StorageEphemeral().Value()).To(Equal(want*gib*93/100), "%q: the ephemeral storage", mountPath)
	}
}

func TestOfferingsOfStorages(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	v := newViewer()
	v.change(func(resources map[string]*proxmox.Resources) {
		for _, region := range resources {
			for _, row := range region.Storages {
				row.Name, row.Type, row.TotalBytes = "tank", "zfspool", 200*gib
				if row.Host != "pve9" {
					region.Storages = append(region.Storages, row)
				}
			}
		}
	})
	disk := func(change func(*v1alpha1.Disk)) func(*v1alpha1.ProxmoxNodeClassSpec) {
		return func(s *v1alpha1.ProxmoxNodeClassSpec) {
			d := v1alpha1.Disk{Name: "data", Size: "150Gi"}
			change(&d)
			s.Disks = []v1alpha1.Disk{d}
		}
	}
	const all = "pve1 pve2 pve9"
	for name, c := range map[string]struct {
		class func(*v1alpha1.ProxmoxNodeClassSpec)
		want  string
	}{
		"default":                 {disk(func(*v1alpha1.Disk) {}), all},
		"storage":                 {disk(func(d *v1alpha1.Disk) { d.Storage = "tank" }), "pve1 pve2 !pve9"},
		"storages":                {disk(func(d *v1alpha1.Disk) { d.Storages = []string{"tank", "local"} }), all},
		"selector":                {disk(func(d *v1alpha1.Disk) { d.StorageSelector = "storage.type == 'zfspool'" }), "pve1 pve2 !pve9"},
		"too_large":               {disk(func(d *v1alpha1.Disk) { d.Storage, d.Size = "tank", "190Gi" }), "!pve1 !pve2 !pve9"},
		"too_large_for_first":     {disk(func(d *v1alpha1.Disk) { d.Storages, d.Size = []string{"tank", "local"}, "190Gi" }), all},
		"boot_disk_storages":      {func(s *v1alpha1.ProxmoxNodeClassSpec) { s.BootDevice.Storages = []string{"tank"} }, "pve1 pve2 !pve9"},
		"boot_disk_selector":      {func(s *v1alpha1.ProxmoxNodeClassSpec) { s.BootDevice.StorageSelector = "storage.free > 500 * Gi" }, all},
		"boot_disk_invalid":       {func(s *v1alpha1.ProxmoxNodeClassSpec) { s.BootDevice.StorageSelector = "storage" }, "!pve1 !pve2 !pve9"},
		"disk_beside_a_boot_disk": {disk(func(d *v1alpha1.Disk) { d.Size = "880Gi" }), "!pve1 !pve2 !pve9"},
	} {
		p, _ := newProvider(t, v) // which remembers what was unavailable
		class := newNodeClassWithAllHosts()
		c.class(&class.Spec)
		g.Expect(offers(t, p, class, "t1.2VCPU-6GB")).To(Equal(c.want), name)
	}
}

func TestMarkUnavailable(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	class := newNodeClassWithAllHosts()
	p, clock := newProvider(t, newViewer())
	const small = "c1.1VCPU-2GB"
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("east", "pve1"), InstanceType: small}, "the storage is full", 3*time.Minute)
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("east", "pve1"), InstanceType: small}, "a shorter one", time.Minute) // never shortens
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("west", "pve9")}, "no quorum", time.Minute)
	p.MarkUnavailable(instancetype.OfferingSelector{Zone: zone("east", "pve2"), NodeClass: "broken"}, "the template has no bridge", time.Minute)
	broken := newNodeClassWithAllHosts()
	broken.Name = "broken"
	g.Expect(offers(t, p, broken, small)).To(Equal("!pve1 !pve2 !pve9"))
	g.Expect(offers(t, p, class, small)).To(Equal("!pve1 pve2 !pve9"))
	g.Expect(offers(t, p, class, "c1.2VCPU-4GB")).To(Equal("pve1 pve2 !pve9"))
	reasons := p.UnavailableReasons(class, small)
	g.Expect(reasons[zone("east", "pve1")]).To(And(ContainSubstring("the storage is full"), ContainSubstring("2026-11-15T08:03:00Z")))
	g.Expect(reasons).To(HaveLen(2))
	g.Expect(p.UnavailableReasons(class, "nano")).To(BeNil())
	clock.Step(time.Minute)
	g.Expect(offers(t, p, class, small)).To(Equal("!pve1 pve2 pve9"), "after a minute")
	clock.Step(2 * time.Minute)
	g.Expect(offers(t, p, class, small)).To(Equal("pve1 pve2 pve9"), "after three minutes")
	g.Expect(p.UnavailableReasons(class, small)).To(BeEmpty())
}
