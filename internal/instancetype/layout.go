// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// defaultCPUType is what Proxmox gives a VM whose configuration names no type.
const defaultCPUType = "kvm64"

// class is what of a NodeClass the offerings depend on.
type class struct {
	region   string
	size     v1alpha1.DiskSize
	storage  string
	maxPods  int32
	selected []string
	unusable []v1alpha1.UnusableZone
	network  *v1alpha1.Network
	affinity v1alpha1.PoolAffinity
	cpu      placement.Layout
	slotTag  string
}

// classOf reads a NodeClass. The slices are the NodeClass's own.
func classOf(nodeClass *v1alpha1.ProxmoxNodeClass) class {
	c := class{
		region:   nodeClass.Spec.Region,
		size:     nodeClass.Spec.BootDevice.Size,
		storage:  nodeClass.Spec.BootDevice.Storage,
		selected: nodeClass.Status.SelectedZones,
		unusable: nodeClass.Status.UnusableZones,
		network:  nodeClass.Spec.Network,
		affinity: nodeClass.Spec.PlacementStrategy.PoolAffinity,
	}
	if kubelet := nodeClass.Spec.KubeletConfiguration; kubelet != nil && kubelet.MaxPods != nil {
		c.maxPods = *kubelet.MaxPods
	}
	return c
}

func (c class) equal(other class) bool {
	return c.region == other.region && c.size == other.size && c.storage == other.storage && c.maxPods == other.maxPods && c.affinity == other.affinity &&
		c.cpu == other.cpu && c.slotTag == other.slotTag &&
		slices.Equal(c.selected, other.selected) && slices.Equal(c.unusable, other.unusable) &&
		(c.network == other.network || equality.Semantic.DeepEqual(c.network, other.network))
}

// clone keeps the class apart from the object that it was read from.
func (c class) clone() class {
	c.selected, c.unusable, c.network = slices.Clone(c.selected), slices.Clone(c.unusable), c.network.DeepCopy()
	return c
}

// diskBytes is the boot disk that the class asks for; the API server checked it.
func (c class) diskBytes() int64 {
	bytes, err := c.size.Bytes()
	if err != nil {
		return 0
	}
	return bytes
}

// layout is the frame of a class's offerings: what they say apart from whether
// they are available.
type layout struct {
	listKey
	affinity  v1alpha1.PoolAffinity
	cpu       placement.Layout
	slotTag   string
	diskBytes int64
	maxPods   int64 // 0 = the type's
	zones     []zone
}

// zone is a Host as a class sees it.
type zone struct {
	placement.Zone
	// template is the VMID to clone from; 0 where the class has none.
	template int
	// ready tells whether the view shows the template with its configuration,
	// which a launch needs.
	ready bool
	// cpuType and image of the template; empty while its configuration is not known.
	cpuType string
	image   string
	// storage that the boot disk goes to; empty while it is not known.
	storage string
	// excluded is why the NodeClass leaves the Host out.
	excluded string
	// exhausted is why no address is left for a VM there.
	exhausted string
	// arch and os of VMs there; empty while they are not known.
	arch, os string
	// devices are the PCI mappings that the template passes on, joined by commas.
	devices string
	// price is the Host's factor.
	price float64
	// means to lay VMs out as the class asks.
	means placement.PinningSupport
}

func (l layout) equal(other layout) bool {
	return l.diskBytes == other.diskBytes && l.maxPods == other.maxPods && l.affinity == other.affinity && l.cpu == other.cpu && slices.Equal(l.zones, other.zones)
}

// layoutOf puts together every Host that is known from the view or from the
// class's status: the status outlives a restart during which a Cluster is away.
func layoutOf(view inventory.View, key listKey, c class) layout {
	zones := map[placement.Zone]zone{}
	for _, host := range view.Hosts() {
		key := placement.Zone{Region: host.Region, Host: host.Name}
		zones[key] = newZone(view, key)
	}
	for _, unusable := range c.unusable {
		if region, host, ok := strings.Cut(unusable.Zone, "/"); ok {
			key := placement.Zone{Region: region, Host: host}
			z := newZone(view, key)
			z.excluded = unusable.Reason
			zones[key] = z
		}
	}
	addresses := pools{view: view, network: c.network, known: map[string]string{}}
	for _, text := range c.selected {
		selected, err := v1alpha1.ParseTemplateZone(text)
		if err != nil {
			continue // not written by this provider; the Host stays listed, without a template
		}
		key := placement.Zone{Region: selected.Region, Host: selected.Host}
		if zones[key].template == 0 {
			z := newZone(view, key).withTemplate(selected.VMID, view, c)
			z.exhausted = addresses.exhausted(z)
			zones[key] = z
		}
	}
	maps.DeleteFunc(zones, func(key placement.Zone, _ zone) bool { return c.region != "" && key.Region != c.region })
	sameNameSamePrice(zones)
	return layout{
		listKey:   key,
		affinity:  c.affinity,
		cpu:       c.cpu,
		slotTag:   c.slotTag,
		diskBytes: c.diskBytes(),
		maxPods:   int64(c.maxPods),
		zones: slices.SortedFunc(maps.Values(zones), func(a, b zone) int {
			return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Host, b.Host))
		}),
	}
}

// sameNameSamePrice gives Hosts of one name the highest of their factors. Karpenter looks
// the price of a Node up by zone and capacity type and takes the first match, whichever
// region it is of: a Node that is cheaper than that would be replaced by its like for ever.
func sameNameSamePrice(zones map[placement.Zone]zone) {
	highest := make(map[string]float64, len(zones))
	for key, z := range zones {
		highest[key.Host] = max(highest[key.Host], z.price)
	}
	for key, z := range zones {
		z.price = highest[key.Host]
		zones[key] = z
	}
}

// newZone is a Host without a template.
func newZone(view inventory.View, key placement.Zone) zone {
	z := zone{Zone: key, price: inventory.DefaultPriceFactor}
	if host, ok := view.Host(key.Region, key.Host); ok {
		z.arch, z.price = host.Arch, host.PriceFactor
	}
	return z
}

// withTemplate adds what the view knows about the zone's template.
func (z zone) withTemplate(vmid int, view inventory.View, c class) zone {
	z.template, z.storage = vmid, c.storage
	guest, _ := view.Guest(z.Region, z.template)
	if guest.Config == nil || !guest.Config.IsTemplate() {
		return z
	}
	z.ready = true
	z.cpuType = cpuTypeOf(*guest.Config)
	z.image = ownership.ImageLabel(z.template, *guest.Config)
	z.os = osOf(*guest.Config)
	z.devices = templateDevices(*guest.Config)
	if guest.Config.Options["arch"] == "aarch64" {
		z.arch = karpv1.ArchitectureArm64
	}
	if disk, ok := guest.Config.Drives().Boot(); ok && z.storage == "" {
		z.storage = disk.Storage
	}
	return z
}

// osOf follows the template's ostype: w2k, wxp, win7 and the like, or anything else.
func osOf(config proxmox.VMConfig) string {
	if strings.HasPrefix(config.Options["ostype"], "w") {
		return string(corev1.Windows)
	}
	return string(corev1.Linux)
}

// cpuTypeOf reads "host", "host,flags=+aes" and "cputype=host,flags=+aes" alike.
func cpuTypeOf(config proxmox.VMConfig) string {
	for _, property := range proxmox.ParseProperties(config.Options["cpu"]) {
		if property.Bare || property.Key == "cputype" {
			return property.Value
		}
	}
	return defaultCPUType
}

// blocked tells why the class can have no VM in the zone at all.
func (z zone) blocked() string {
	switch {
	case z.excluded != "":
		return z.excluded
	case z.template == 0:
		return "the NodeClass has no template there"
	case !z.ready:
		return fmt.Sprintf("template %d is not there, or its configuration could not be read", z.template)
	}
	return ""
}
