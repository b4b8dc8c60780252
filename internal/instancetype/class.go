// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/storageselection"
)

// classInput is a NodeClass with what follows from it and the settings.
type classInput struct {
	*v1alpha1.ProxmoxNodeClass
	cpu     placement.Layout
	slotTag string
	sizing  sizing
	// kubelet is the same object while the kubelet configuration is the same.
	kubelet *kubeletOverhead
	// selectors of the storages of the disks by field; only set in newOfferingParams.
	selectors map[string]storageselection.Selector
}

// newClassInput returns the input of a list that replaces another one, which may be nil.
func (p *Provider) newClassInput(nodeClass *v1alpha1.ProxmoxNodeClass, before *list) classInput {
	c := classInput{ProxmoxNodeClass: nodeClass.DeepCopy()}
	c.cpu, c.slotTag = p.deps.CPULayouts.forClass(nodeClass)
	c.sizing = newSizing(nodeClass.Spec.VMSize, p.deps.VMSizePolicy, int64(c.cpu.PageMiB)*mib)
	switch spec := c.Spec.KubeletConfiguration; {
	case spec == nil:
	case before != nil && equality.Semantic.DeepEqual(before.params.Spec.KubeletConfiguration, spec):
		c.kubelet = before.params.kubelet
	default:
		c.kubelet = newKubeletOverhead(spec)
	}
	return c
}

// isFrom reports whether the input is that of the NodeClass. Offerings depend on no other fields of the status.
func (c classInput) isFrom(nodeClass *v1alpha1.ProxmoxNodeClass) bool {
	return slices.Equal(c.Status.SelectedZones, nodeClass.Status.SelectedZones) && reflect.DeepEqual(&c.Spec, &nodeClass.Spec) &&
		reflect.DeepEqual(c.Status.UnusableZones, nodeClass.Status.UnusableZones) &&
		slices.EqualFunc(c.Status.MemoryOverhead, nodeClass.Status.MemoryOverhead, sameMemoryOverhead)
}

// diskBytes is the size of all boot disks: that of the class, or of the largest template. So
// Nodes are alike in all zones. The API server has validated the size of the class.
func (c classInput) diskBytes(view inventory.View) int64 {
	bytes, err := c.Spec.BootDevice.Size.Bytes()
	if err != nil {
		bytes = 0
	}
	for _, text := range c.Status.SelectedZones {
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
	classInput
	diskBytes int64
	// kubeletDiskBytes is the size of the disk with the kubelet's directory; 0 if that is the
	// boot disk.
	kubeletDiskBytes int64
	memory           memoryModel
	zones            []zone
	// index is the position of each zone.
	index map[placement.Zone]int
}

func (o offeringParams) equal(other offeringParams) bool {
	return o.diskBytes == other.diskBytes && o.kubeletDiskBytes == other.kubeletDiskBytes && o.kubelet == other.kubelet &&
		o.Spec.PlacementStrategy.PoolAffinity == other.Spec.PlacementStrategy.PoolAffinity && o.cpu == other.cpu && o.sizing == other.sizing &&
		slices.EqualFunc(o.memory.images, other.memory.images, sameMemoryOverhead) && slices.EqualFunc(o.zones, other.zones, sameZone)
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
	for _, unusable := range c.Status.UnusableZones {
		if region, host, ok := strings.Cut(unusable.Zone, "/"); ok {
			key := placement.Zone{Region: region, Host: host}
			z := newZone(view, key)
			z.excludedReason = unusable.Reason
			zones[key] = z
		}
	}
	addressPools := addressPoolCheck{view: view, class: c.ProxmoxNodeClass, known: map[string]string{}}
	for _, text := range c.Status.SelectedZones {
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
	maps.DeleteFunc(zones, func(key placement.Zone, _ zone) bool { return c.Spec.Region != "" && key.Region != c.Spec.Region })
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
		listKey: key, classInput: c, diskBytes: c.diskBytes(view), kubeletDiskBytes: c.kubeletDiskBytes(),
		memory: newMemoryModel(sorted, c.Status.MemoryOverhead), zones: sorted, index: index,
	}
}
