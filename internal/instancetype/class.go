// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/storageselection"
)

// classInput contains the fields of a NodeClass that offerings depend on. It shares
// slices with the NodeClass; see clone.
type classInput struct {
	region   string
	boot     v1alpha1.BootDevice
	disks    []v1alpha1.Disk
	hardware *v1alpha1.Hardware
	selected []string
	unusable []v1alpha1.UnusableZone
	network  *v1alpha1.Network
	machines []v1alpha1.Machine
	affinity v1alpha1.PoolAffinity
	reserve  v1alpha1.Reserve
	cpu      placement.Layout
	slotTag  string
	sizing   sizing
	// kubelet is the same object while the kubelet configuration is the same.
	kubelet *kubeletOverhead
	// observed is what Nodes reported.
	observed []v1alpha1.MemoryOverhead
	// selectors of the storages of the disks by field; only set in newOfferingParams.
	selectors map[string]storageselection.Selector
}

func newClassInput(nodeClass *v1alpha1.ProxmoxNodeClass) classInput {
	return classInput{
		region:   nodeClass.Spec.Region,
		boot:     nodeClass.Spec.BootDevice,
		disks:    nodeClass.Spec.Disks,
		hardware: nodeClass.Spec.Hardware,
		selected: nodeClass.Status.SelectedZones,
		unusable: nodeClass.Status.UnusableZones,
		network:  nodeClass.Spec.Network,
		machines: nodeClass.Spec.Machines,
		affinity: nodeClass.Spec.PlacementStrategy.PoolAffinity,
		reserve:  nodeClass.Spec.PlacementStrategy.Reserve,
		observed: nodeClass.Status.MemoryOverhead,
	}
}

func (c classInput) equal(other classInput) bool {
	return c.region == other.region && c.sameDisks(other) && c.kubelet == other.kubelet && c.affinity == other.affinity && c.reserve == other.reserve &&
		c.cpu == other.cpu && c.slotTag == other.slotTag && c.sizing == other.sizing &&
		slices.Equal(c.selected, other.selected) && slices.EqualFunc(c.unusable, other.unusable, sameUnusableZone) &&
		slices.EqualFunc(c.observed, other.observed, sameMemoryOverhead) &&
		sameObject(c.hardware, other.hardware) && sameObject(c.network, other.network) && c.sameMachines(other)
}

func (c classInput) sameMachines(other classInput) bool {
	return len(c.machines) == len(other.machines) && (len(c.machines) == 0 || equality.Semantic.DeepEqual(c.machines, other.machines))
}

// sameObject compares the content only if these are two objects.
func sameObject[T any](a, b *T) bool { return a == b || equality.Semantic.DeepEqual(a, b) }

// sameUnusableZone ignores the time, which offerings do not depend on.
func sameUnusableZone(a, b v1alpha1.UnusableZone) bool {
	return a.Zone == b.Zone && a.Reason == b.Reason
}

// clone returns a copy that shares no memory with the NodeClass.
func (c classInput) clone() classInput {
	c.selected, c.unusable = slices.Clone(c.selected), slices.Clone(c.unusable)
	c.network, c.hardware = c.network.DeepCopy(), c.hardware.DeepCopy()
	class := (&v1alpha1.ProxmoxNodeClassSpec{BootDevice: c.boot, Disks: c.disks, Machines: c.machines}).DeepCopy()
	c.boot, c.disks, c.machines = class.BootDevice, class.Disks, class.Machines
	c.observed = (&v1alpha1.ProxmoxNodeClassStatus{MemoryOverhead: c.observed}).DeepCopy().MemoryOverhead
	return c
}

// diskBytes is the size of all boot disks: that of the class, or of the largest template. So
// Nodes are alike in all zones. The API server has validated the size of the class.
func (c classInput) diskBytes(view inventory.View) int64 {
	bytes, err := c.boot.Size.Bytes()
	if err != nil {
		bytes = 0
	}
	for _, text := range c.selected {
		selected, err := v1alpha1.ParseTemplateZone(text)
		if err != nil {
			continue
		}
		guest, _ := view.Guest(selected.Region, selected.VMID)
		if guest.Config == nil || !guest.Config.IsTemplate() {
			continue
		}
		if disk, ok := guest.Config.Drives().Boot(); ok {
			bytes = max(bytes, disk.SizeBytes)
		}
	}
	return bytes
}

// offeringParams contains everything that determines the offerings of a NodeClass,
// except their availability.
type offeringParams struct {
	listKey
	affinity  v1alpha1.PoolAffinity
	reserve   v1alpha1.Reserve // only for availability
	cpu       placement.Layout
	slotTag   string
	sizing    sizing
	diskBytes int64
	// kubeletDiskBytes is the size of the disk with the kubelet's directory; 0 if that is the
	// boot disk.
	kubeletDiskBytes int64
	kubelet          *kubeletOverhead
	memory           memoryModel
	zones            []zone
	// index is the position of each zone.
	index map[placement.Zone]int
}

func (o offeringParams) equal(other offeringParams) bool {
	return o.diskBytes == other.diskBytes && o.kubeletDiskBytes == other.kubeletDiskBytes && o.kubelet == other.kubelet && o.affinity == other.affinity && o.cpu == other.cpu && o.sizing == other.sizing && o.memory.equal(other.memory) &&
		slices.EqualFunc(o.zones, other.zones, sameZone)
}

// newOfferingParams collects every Host in the view and in the status of the NodeClass.
// The status is still set after a restart while a Cluster is unreachable.
func newOfferingParams(view inventory.View, key listKey, c classInput) offeringParams {
	c.selectors = c.newSelectors()
	zones := map[placement.Zone]zone{}
	for _, host := range view.Hosts() {
		key := placement.Zone{Region: host.Region, Host: host.Name}
		zones[key] = newZone(view, key)
	}
	for _, unusable := range c.unusable {
		if region, host, ok := strings.Cut(unusable.Zone, "/"); ok {
			key := placement.Zone{Region: region, Host: host}
			z := newZone(view, key)
			z.excludedReason = unusable.Reason
			zones[key] = z
		}
	}
	addressPools := addressPoolCheck{view: view, network: c.network, machines: c.machines, known: map[string]string{}}
	for _, text := range c.selected {
		selected, err := v1alpha1.ParseTemplateZone(text)
		if err != nil {
			continue // not written by this provider; the Host is listed without a template
		}
		key := placement.Zone{Region: selected.Region, Host: selected.Host}
		if zones[key].template == 0 {
			z := newZone(view, key).withTemplate(selected.VMID, view, c)
			z.exhaustedReason = addressPools.exhaustedReason(z)
			zones[key] = z
		}
	}
	maps.DeleteFunc(zones, func(key placement.Zone, _ zone) bool { return c.region != "" && key.Region != c.region })
	unifyPriceFactors(zones)
	raiseSleeping(zones)
	// Core takes the price of a Node from the first zone with the name of its Host in any region.
	sorted := slices.SortedFunc(maps.Values(zones), func(a, b zone) int {
		switch {
		case a.asleep && !b.asleep:
			return 1
		case b.asleep && !a.asleep:
			return -1
		}
		return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Host, b.Host))
	})
	index := make(map[placement.Zone]int, len(sorted))
	for n, z := range sorted {
		index[z.Zone] = n
	}
	return offeringParams{
		listKey:   key,
		affinity:  c.affinity,
		reserve:   c.reserve,
		cpu:       c.cpu,
		slotTag:   c.slotTag,
		sizing:    c.sizing,
		diskBytes: c.diskBytes(view),
		kubelet:   c.kubelet,

		kubeletDiskBytes: c.kubeletDiskBytes(),

		memory: newMemoryModel(sorted, c.observed),
		zones:  sorted,
		index:  index,
	}
}
