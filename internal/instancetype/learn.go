// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instancetype

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ErrImageUnused means that the NodeClass has no template of the observed VM's image,
// firmware and machine type anymore.
var ErrImageUnused = errors.New("no template of the NodeClass has the image, firmware and machine type of the VM anymore")

// maxOverheadDivisor limits the overhead to half of a VM's memory. A Node that reports
// less was started with another kernel argument, or with less memory.
const maxOverheadDivisor = 2

// guestKey identifies VMs with the same overhead for the same size.
type guestKey struct{ image, bios, machine string }

// templateKey returns the key of a template's clones.
func templateKey(vmid int, config proxmox.VMConfig) guestKey {
	return newGuestKey(ownership.ImageID(vmid, config), config)
}

func newGuestKey(image string, config proxmox.VMConfig) guestKey {
	return guestKey{image: image, bios: cmp.Or(config.Options["bios"], "seabios"), machine: bareProperty(config.Options["machine"], "type", "pc")}
}

func (k guestKey) newOverhead() v1alpha1.MemoryOverhead {
	return v1alpha1.MemoryOverhead{Image: k.image, BIOS: k.bios, Machine: k.machine}
}

// indexIn returns the position of the key's entry, or -1.
func (k guestKey) indexIn(list []v1alpha1.MemoryOverhead) int {
	return slices.IndexFunc(list, func(m v1alpha1.MemoryOverhead) bool { return keyOf(m) == k })
}

func keyOf(m v1alpha1.MemoryOverhead) guestKey { return guestKey{m.Image, m.BIOS, m.Machine} }

// Observation is a VM with what its Node reports.
type Observation struct {
	// Image, InstanceType, CPUs and MemoryMiB are those of the launch.
	Image, InstanceType string
	CPUs                int
	MemoryMiB           int
	// Slot is where the VM was cloned from a slot template, which has another ID than the
	// template of the NodeClass; the zero value if it was not.
	Slot placement.Zone
	// VM is the current configuration.
	VM proxmox.VMConfig
	// Capacity is that of the Node.
	Capacity corev1.ResourceList
}

// Learn returns the NodeClass's status.memoryOverhead with an observation. Entries of
// images that the NodeClass does not use anymore are removed. The error is the reason why
// the observation, or a part of it, was ignored.
func (p *Provider) Learn(nodeClass *v1alpha1.ProxmoxNodeClass, o Observation) ([]v1alpha1.MemoryOverhead, error) {
	known := nodeClass.Status.MemoryOverhead
	if err := o.validate(); err != nil {
		return known, err
	}
	key, zones := newGuestKey(o.Image, o.VM), p.currentList(nodeClass, "").params.zones
	if n := slices.IndexFunc(zones, func(z zone) bool { return z.Zone == o.Slot && z.ready }); n >= 0 {
		key = zones[n].guest
	}
	learned := make([]v1alpha1.MemoryOverhead, 0, len(known)+1)
	used, complete := usedKeys(zones)
	if complete && !used[key] {
		return known, fmt.Errorf("%w: image %s, %s, %s", ErrImageUnused, key.image, key.bios, key.machine)
	}
	for _, m := range known {
		if !complete || used[keyOf(m)] {
			learned = append(learned, *m.DeepCopy())
		}
	}
	n := key.indexIn(learned)
	if n < 0 && len(learned) == v1alpha1.MaxMemoryOverheads {
		return known, fmt.Errorf("the NodeClass has more than %d images", v1alpha1.MaxMemoryOverheads)
	}
	if n < 0 {
		n, learned = len(learned), append(learned, key.newOverhead())
	}
	learned[n].Sizes = withSize(learned[n].Sizes, o.size())
	var err error
	learned[n].Hugepages, err = p.withHugepages(learned[n].Hugepages, o)
	return learned, err
}

// usedKeys returns the keys of the zones' templates. It returns false if some are unknown.
func usedKeys(zones []zone) (used map[guestKey]bool, complete bool) {
	used, complete = map[guestKey]bool{}, true
	for _, z := range zones {
		if z.ready {
			used[z.guest] = true
		} else if z.template != 0 {
			complete = false
		}
	}
	return used, complete
}

// validate returns an error if the memory of the Node is not that of a new VM of the
// same size.
func (o Observation) validate() error {
	vm, node := int64(o.MemoryMiB)*mib, o.Capacity.Memory().Value()
	if current := o.VM.Compute().MemoryMiB(); current != o.MemoryMiB {
		return fmt.Errorf("the VM has %d MiB of memory, and was launched with %d MiB", current, o.MemoryMiB)
	}
	if balloon, err := strconv.Atoi(o.VM.Options["balloon"]); err == nil && balloon > 0 && balloon < o.MemoryMiB {
		return fmt.Errorf("the VM has the option balloon: %d, so Proxmox can reclaim its memory; VMs are launched with balloon: 0", balloon)
	}
	if node <= 0 || node >= vm || node < vm-vm/maxOverheadDivisor {
		return fmt.Errorf("the Node reports %d MiB of memory, want less than the %d MiB of the VM, and at least half of it", node/mib, o.MemoryMiB)
	}
	return nil
}

// size returns the overhead of the VM, which is valid.
func (o Observation) size() v1alpha1.MemoryOverheadSize {
	overhead := int64(o.MemoryMiB)*mib - o.Capacity.Memory().Value() - int64(o.CPUs)*memoryOverheadPerCPU
	return v1alpha1.MemoryOverheadSize{MemoryMiB: int64(o.MemoryMiB), OverheadMiB: max(0, roundUp(overhead, mib)/mib)}
}

// withHugepages returns the hugepages with those of a Node that has fewer than its type
// has. A Node without any is a mistake in its boot data, and no reason to offer none.
func (p *Provider) withHugepages(known []v1alpha1.ObservedHugepages, o Observation) ([]v1alpha1.ObservedHugepages, error) {
	t, _ := p.deps.Catalog.Get(o.InstanceType)
	var missing []error
	for _, name := range slices.Sorted(maps.Keys(t.Extra)) {
		promised, reported := t.Extra[name], o.Capacity[name]
		if !strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) || reported.Cmp(promised) >= 0 {
			continue
		}
		if reported.Value() < mib {
			missing = append(missing, fmt.Errorf("the Node reports no %s, want %s; allocate the pages before the kubelet starts", name, promised.String()))
			continue
		}
		entry := v1alpha1.ObservedHugepages{InstanceType: t.Name, Resource: string(name), MemoryMiB: reported.Value() / mib}
		n := slices.IndexFunc(known, func(h v1alpha1.ObservedHugepages) bool {
			return h.InstanceType == entry.InstanceType && h.Resource == entry.Resource
		})
		switch {
		case n >= 0:
			known[n].MemoryMiB = min(known[n].MemoryMiB, entry.MemoryMiB)
		case len(known) < v1alpha1.MaxMemoryOverheadSizes:
			known = append(known, entry)
		}
	}
	return known, errors.Join(missing...)
}
