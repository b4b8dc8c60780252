// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// exhaustedPause is how long a zone is left alone whose pool turned out to be empty
// although the view showed addresses: Nodes may have them.
const exhaustedPause = 30 * time.Second

// addressing is what is found out before addresses are picked: picking happens under
// the ledger's lock, where nothing may be asked.
type addressing struct {
	// busy are the addresses of Nodes, and the routers of all pools.
	busy map[netip.Addr]struct{}
}

// recollection of all Claims, once per process: an address that an earlier process
// promised stands in the Claim's intent and nowhere else yet.
type recall struct {
	mu   sync.Mutex
	done bool
}

// addressing prepares the choice of addresses. Classes without pools need nothing.
func (p *Provider) addressing(ctx context.Context, class *v1alpha1.ProxmoxNodeClass) (*addressing, error) {
	regions := pooledRegions(p.Inventory.View(), class)
	if len(regions) == 0 {
		return &addressing{}, nil
	}
	p.Inventory.WatchAddresses()
	if err := p.recallClaims(ctx); err != nil {
		return nil, err
	}
	for region := range regions {
		if snapshot := p.Inventory.View().Snapshots[region]; snapshot != nil && !snapshot.AddressesKnown {
			// Only the first time since the start; what fails, assign tells.
			_ = p.Inventory.Refresh(ctx, region)
		}
	}
	a := &addressing{busy: map[netip.Addr]struct{}{}}
	if err := p.addRouters(ctx, a); err != nil {
		return nil, err
	}
	nodes := &corev1.NodeList{}
	if err := p.Kube.List(ctx, nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing nodes for their addresses, %w", err)
	}
	for _, node := range nodes.Items {
		for _, address := range node.Status.Addresses {
			if addr, err := netip.ParseAddr(address.Address); err == nil {
				a.busy[addr] = struct{}{}
			}
		}
	}
	return a, nil
}

// addRouters makes the gateways of all classes' pools busy: where two pools share a
// subnet and have a router each, a VM of one must not become the router of the other.
func (p *Provider) addRouters(ctx context.Context, a *addressing) error {
	classes := &v1alpha1.ProxmoxNodeClassList{}
	if err := p.Kube.List(ctx, classes); err != nil {
		return fmt.Errorf("listing nodeclasses for the gateways of their pools, %w", err)
	}
	view := p.Inventory.View()
	for i := range classes.Items {
		for _, layout := range layoutsOf(view, &classes.Items[i]) {
			for _, source := range layout.Pools() {
				if gateway := source.Pool.Gateway(); gateway.IsValid() {
					a.busy[gateway] = struct{}{}
				}
			}
		}
	}
	return nil
}

// pooledRegions are those where VMs of the class get addresses of pools.
func pooledRegions(view inventory.View, class *v1alpha1.ProxmoxNodeClass) map[string]bool {
	regions := map[string]bool{}
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || regions[zone.Region] {
			continue
		}
		if template, ok := view.Guest(zone.Region, zone.VMID); ok && template.Config != nil {
			layout, err := network.NewLayout(class, *template.Config)
			regions[zone.Region] = err == nil && len(layout.Pools()) > 0
		}
	}
	for region, pooled := range regions {
		if !pooled {
			delete(regions, region)
		}
	}
	return regions
}

// recallClaims puts the promises of all Claims into the ledger, once. It reads past the
// cache, which may not show yet what the last leader wrote.
func (p *Provider) recallClaims(ctx context.Context) error {
	p.recall.mu.Lock()
	defer p.recall.mu.Unlock()
	if p.recall.done {
		return nil
	}
	claims := &karpv1.NodeClaimList{}
	if err := p.Boot.Reader.List(ctx, claims); err != nil {
		return fmt.Errorf("listing nodeclaims for what they were promised, %w", err)
	}
	for i := range claims.Items {
		p.RestoreReservation(&claims.Items[i])
	}
	p.recall.done = true
	return nil
}

// assign picks the addresses of a Claim's VM.
func (p *Provider) assign(view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, template inventory.Guest, in Intent, known *addressing) (network.Assignment, error) {
	layout, err := network.NewLayout(class, *template.Config)
	if err != nil {
		return network.Assignment{}, fmt.Errorf("%s/%s: %w", in.Region, in.Host, err)
	}
	if len(layout.Pools()) > 0 && !view.Snapshots[in.Region].AddressesKnown {
		return network.Assignment{}, fmt.Errorf("region %s: which addresses its guests have is still being read", in.Region)
	}
	given, err := layout.Assign(network.Request{
		View: view, Region: in.Region, Host: in.Host, Key: string(claim.UID),
		Busy: func(a netip.Addr) bool { _, busy := known.busy[a]; return busy },
	})
	if _, exhausted := errors.AsType[*network.ExhaustedError](err); exhausted {
		p.Types.MarkUnavailable(instancetype.Offerings{
			Zone: placement.Zone{Region: in.Region, Host: in.Host}, NodeClass: class.Name,
		}, err.Error(), exhaustedPause)
	}
	return given, err
}

// countExhausted counts a VM for which there was no address: either none was left to
// pick, or no offering was, because pools are empty on all Hosts of the class.
func (p *Provider) countExhausted(class *v1alpha1.ProxmoxNodeClass, err error) {
	if _, noRoom := errors.AsType[*InsufficientCapacityError](err); !noRoom {
		return
	}
	exhausted, ok := errors.AsType[*network.ExhaustedError](err)
	if !ok {
		view := p.Inventory.View()
		for _, layout := range layoutsOf(view, class) {
			if exhausted = layout.Exhausted(view); exhausted == nil {
				return
			}
		}
	}
	if exhausted != nil {
		p.Metrics.poolExhausted(class.Name, exhausted.Source.Pool.Subnet().String())
	}
}

// refuseRivals makes sure that nobody else has turned up with one of the VM's
// addresses since they were picked: another Kubernetes cluster on the same Proxmox, or
// a person.
func (l *launch) refuseRivals() error {
	view := l.Inventory.View()
	for _, addr := range l.intent.Network.Addresses() {
		if who, rival := view.Addresses().Conflict(addr, l.intent.Region, l.intent.VMID); rival {
			return &LaunchError{Reason: ReasonAddressTaken, err: fmt.Errorf("address %s of VM %d was taken meanwhile by %s", addr, l.intent.VMID, who)}
		}
	}
	return nil
}
