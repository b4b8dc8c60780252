// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// exhaustedBackoff is how long a zone is not offered if an AddressPool has no address
// left although the View showed some: Nodes may use them.
const exhaustedBackoff = 30 * time.Second

// busyAddresses are the addresses of Nodes, and the gateways of all AddressPools. They
// are read before the ledger is locked.
type busyAddresses map[netip.Addr]bool

// readBusyAddresses reads what the choice of addresses needs; nothing for classes
// without AddressPools.
func (p *Planner) readBusyAddresses(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (busyAddresses, error) {
	regions := pooledRegions(p.deps.Inventory.View(), class)
	if len(regions) == 0 {
		return nil, nil
	}
	p.deps.Inventory.WatchAddresses()
	for region := range regions {
		if snapshot := p.deps.Inventory.View().Snapshots[region]; snapshot != nil && !snapshot.AddressesKnown {
			// Only once since the start; assignAddresses reports a failure.
			_ = p.deps.Inventory.Refresh(ctx, region)
		}
	}
	busy := busyAddresses{}
	if err := p.addGateways(ctx, busy); err != nil {
		return nil, err
	}
	nodes := &corev1.NodeList{}
	if err := p.deps.Kube.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes for their addresses: %w", err)
	}
	for _, node := range nodes.Items {
		for _, address := range node.Status.Addresses {
			if addr, err := netip.ParseAddr(address.Address); err == nil {
				busy[addr] = true
			}
		}
	}
	return busy, nil
}

// addGateways adds the gateways of all classes' AddressPools and the addresses of their
// machines: if two pools share a
// subnet and have different gateways, a VM of one must not get the gateway of the other.
func (p *Planner) addGateways(ctx context.Context, busy busyAddresses) error {
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if err := p.deps.Kube.List(ctx, classes); err != nil {
		return fmt.Errorf("listing NodeClasses for the gateways of their pools: %w", err)
	}
	view := p.deps.Inventory.View()
	for i := range classes.Items {
		addMachineAddresses(busy, &classes.Items[i])
		for _, layout := range layouts(view, &classes.Items[i]) {
			for _, source := range layout.Pools() {
				if gateway := source.Pool.Gateway(); gateway.IsValid() {
					busy[gateway] = true
				}
			}
		}
	}
	return nil
}

// addMachineAddresses adds the addresses of a class's machines: no other VM gets them, also
// while their machine does not exist.
func addMachineAddresses(busy busyAddresses, class *v1alpha1.ProxmoxNodeClass) {
	for _, machine := range class.Spec.Machines {
		for _, i := range machine.Addresses {
			for _, text := range []string{i.Address4, i.Address6} {
				if address, err := netip.ParseAddr(text); err == nil {
					busy[address] = true
				}
			}
		}
	}
}

// pooledRegions returns the regions where VMs of the class get addresses of AddressPools.
func pooledRegions(view inventory.View, class *v1alpha1.ProxmoxNodeClass) map[string]bool {
	regions := map[string]bool{}
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || regions[zone.Region] {
			continue
		}
		if template, ok := view.Guest(zone.Region, zone.VMID); ok && template.Config != nil {
			if layout, err := network.NewLayout(class, *template.Config); err == nil && len(layout.Pools()) > 0 {
				regions[zone.Region] = true
			}
		}
	}
	return regions
}

// assignAddresses chooses the addresses of a Claim's VM. It runs under the ledger's lock.
func (p *Planner) assignAddresses(
	view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, template observed.Guest, in instance.Intent, busy busyAddresses,
) (network.Assignment, error) {
	layout, err := network.NewLayout(class, *template.Config)
	if err != nil {
		return network.Assignment{}, fmt.Errorf("%s/%s: %w", in.Region, in.Host, err)
	}
	if len(layout.Pools()) > 0 && !view.Snapshots[in.Region].AddressesKnown {
		return network.Assignment{}, fmt.Errorf("region %s: the addresses of its guests were not read yet", in.Region)
	}
	machine, _ := class.Spec.FindMachine(in.Machine)
	assigned, err := layout.Assign(network.Request{
		View: view, Region: in.Region, Host: in.Host, Key: p.networkKey(claim, in), Machine: machine,
		Busy: busy,
	})
	if _, exhausted := errors.AsType[*network.ExhaustedError](err); exhausted {
		p.types.MarkUnavailable(instancetype.OfferingSelector{
			Zone: placement.Zone{Region: in.Region, Host: in.Host}, NodeClass: class.Name,
		}, err.Error(), exhaustedBackoff)
	}
	return assigned, err
}

// countExhausted counts a VM for which there was no address: none was free, or no
// offering was available because the AddressPools of all Hosts are exhausted.
func (p *Planner) countExhausted(class *v1alpha1.ProxmoxNodeClass, err error) {
	if _, insufficient := errors.AsType[*instance.InsufficientCapacityError](err); !insufficient {
		return
	}
	exhausted, ok := errors.AsType[*network.ExhaustedError](err)
	if !ok {
		view := p.deps.Inventory.View()
		for _, layout := range layouts(view, class) {
			if exhausted = layout.Exhausted(view); exhausted == nil {
				return
			}
		}
	}
	if exhausted != nil {
		p.metrics.AddressPoolExhausted(class.Name, exhausted.Source.Pool.Subnet().String())
	}
}
