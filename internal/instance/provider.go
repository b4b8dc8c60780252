// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Provider finds the VMs of this Kubernetes cluster.
type Provider struct{ deps Deps }

// NewProvider returns a Provider.
func NewProvider(deps Deps) *Provider { return &Provider{deps} }

// List returns all VMs of this Kubernetes cluster. It reads VMs, never Nodes. If a
// Cluster is unreachable, its VMs are those of the last Snapshot. If a Cluster was never
// polled, List returns the VMs of the others and ErrNotPolled. Callers for which a
// missing VM counts as deleted must not use a list with an error.
func (p *Provider) List() ([]VM, error) {
	view := p.deps.Inventory.View()
	var out []VM
	var errs []error
	for region := range p.deps.Clients {
		snapshot, ok := view.Snapshots[region]
		if !ok {
			errs = append(errs, fmt.Errorf("listing VMs of region %s: %w", region, errors.Join(ErrNotPolled, view.Failures[region])))
			continue
		}
		for _, guest := range snapshot.Guests {
			if vm, ok := newVM(p.deps.KubeCluster, snapshot, guest); ok {
				out = append(out, vm)
			}
		}
	}
	slices.SortFunc(out, func(a, b VM) int { return strings.Compare(a.ProviderID(), b.ProviderID()) })
	return out, errors.Join(errs...)
}

// Get reads one VM. It returns proxmox.ErrNotFound only if the Cluster confirmed that
// the VM does not exist, or that the VMID is used by another guest.
func (p *Provider) Get(ctx context.Context, id v1alpha1.ProviderID) (VM, error) {
	vm, err := p.read(ctx, id)
	if errors.Is(err, errMoved) {
		vm, err = p.read(ctx, id)
	}
	return vm, err
}

// GetLastKnown reads one VM like Get, but does not fail while its Host or Cluster is
// unreachable: if the VM cannot be read within OperationTimeout, it returns the VM of the
// last Snapshot, which may have been deleted since. It returns the error of Get if there
// is none.
func (p *Provider) GetLastKnown(ctx context.Context, id v1alpha1.ProviderID) (VM, error) {
	ctx, cancel := context.WithTimeout(ctx, p.deps.Settings.OperationTimeout)
	defer cancel()
	vm, err := p.Get(ctx, id)
	if err == nil || errors.Is(err, proxmox.ErrNotFound) {
		return vm, err
	}
	view := p.deps.Inventory.View()
	if guest, listed := view.Guest(id.Region, id.VMID); listed {
		if vm, owned := newVM(p.deps.KubeCluster, view.Snapshots[id.Region], guest); owned {
			return vm, nil
		}
	}
	return VM{}, err
}

// errMoved means that a VM is not on the Host that the list showed: it was migrated or
// deleted in between.
var errMoved = errors.New("it is no longer on the host that it was listed on")

func (p *Provider) read(ctx context.Context, id v1alpha1.ProviderID) (VM, error) {
	client, err := p.deps.Clients.Get(id.Region)
	if err != nil {
		return VM{}, err
	}
	if err := p.deps.Inventory.Refresh(ctx, id.Region); err != nil {
		return VM{}, fmt.Errorf("reading VM %d in region %s: %w", id.VMID, id.Region, err)
	}
	snapshot, ok := p.deps.Inventory.View().Snapshots[id.Region]
	if !ok {
		return VM{}, fmt.Errorf("reading VM %d in region %s: %w", id.VMID, id.Region, ErrNotPolled)
	}
	guest, ok := snapshot.Guests[id.VMID]
	if !ok {
		return VM{}, fmt.Errorf("VM %d in region %s: %w", id.VMID, id.Region, ConfirmAbsent(ctx, client, snapshot, id.VMID))
	}
	if guest.Kind != proxmox.KindQEMU {
		return VM{}, fmt.Errorf("VM %d in region %s: a container has its VMID: %w", id.VMID, id.Region, proxmox.ErrNotFound)
	}
	if _, member := snapshot.Hosts[guest.Host]; member && !snapshot.IsOnline(guest.Host) {
		// A request would fail as well, after up to 30 s.
		return VM{}, fmt.Errorf("reading VM %d: %w: host %s is offline", id.VMID, proxmox.ErrHostUnreachable, guest.Host)
	}
	cfg, err := client.VMConfig(ctx, guest.Host, id.VMID)
	if errors.Is(err, proxmox.ErrNotFound) {
		return VM{}, fmt.Errorf("reading VM %d on host %s: %w", id.VMID, guest.Host, errMoved)
	}
	if err != nil {
		return VM{}, err
	}
	guest.Config = &cfg
	vm, ok := newVM(p.deps.KubeCluster, snapshot, guest)
	if !ok {
		if err := p.checkLostMark(ctx, id, guest.Host, cfg); err != nil {
			return VM{}, err
		}
		return VM{}, fmt.Errorf("VM %d in region %s is not owned by this Kubernetes cluster: %w", id.VMID, id.Region, proxmox.ErrNotFound)
	}
	return vm, nil
}

// checkLostMark returns an error if a VM without our ownership mark is that of a Claim, or of another
// Claim by its SMBIOS fields.
func (p *Provider) checkLostMark(ctx context.Context, id v1alpha1.ProviderID, host string, cfg proxmox.VMConfig) error {
	_, marked := ReadIdentity(id.Region, cfg)
	lost := !marked && vmconfig.IsConfigured(cfg, id.VMID)
	claims := &karpv1.NodeClaimList{}
	if err := p.deps.Kube.List(ctx, claims, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("listing NodeClaims: %w", err)
	}
	for i := range claims.Items {
		claim := &claims.Items[i]
		lost = lost || claim.Status.ProviderID == id.String() && NewIdentity(p.deps.KubeCluster, id, claim).HasLostMark(cfg)
	}
	if lost {
		return fmt.Errorf("VM %d on host %s is that of a node, but its notes have no ownership mark of it: another controller created it, or its notes have lost the mark", id.VMID, host)
	}
	return nil
}

// ConfirmAbsent reads the configuration of a VM that no list shows, and returns
// proxmox.ErrNotFound if it does not exist. Proxmox omits VMs that the token may not
// read from lists without an error; a direct request returns one.
func ConfirmAbsent(ctx context.Context, client proxmox.Client, snapshot *observed.Snapshot, vmid int) error {
	for name := range snapshot.Hosts {
		if !snapshot.IsOnline(name) {
			continue
		}
		_, err := client.VMConfig(ctx, name, vmid)
		if err == nil {
			return errors.New("VM was created after the last poll")
		}
		return err
	}
	return errors.New("no online host to read the VM configuration from")
}

// getOwned reads a Claim's VM. It returns proxmox.ErrNotFound if the VM belongs to
// another Claim, and ErrNewerVersion if it must not be changed.
func (p *Provider) getOwned(ctx context.Context, id v1alpha1.ProviderID, claim *karpv1.NodeClaim) (VM, error) {
	vm, err := p.Get(ctx, id)
	if err != nil {
		return VM{}, err
	}
	if vm.ClaimUID != string(claim.UID) {
		return VM{}, fmt.Errorf("VM %d in region %s belongs to another NodeClaim: %w", id.VMID, id.Region, proxmox.ErrNotFound)
	}
	if vm.hasNewerMark {
		return VM{}, fmt.Errorf("reading the ownership mark of VM %d on host %s: %w", id.VMID, vm.Host, ErrNewerVersion)
	}
	return vm, nil
}

// MayExist reports whether a Claim's VM could exist although no Snapshot shows it as
// ours: it is being launched, its configuration was not read yet, or its Cluster is
// unreachable.
func (p *Provider) MayExist(claim *karpv1.NodeClaim) bool {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return false
	}
	view := p.deps.Inventory.View()
	guest, listed := view.Guest(id.Region, id.VMID)
	listed = listed && guest.Kind == proxmox.KindQEMU
	snapshot := view.Snapshots[id.Region]
	at, launched := p.deps.LaunchedAt(claim)
	switch {
	case snapshot == nil || view.Failures[id.Region] != nil:
		return true
	case listed && (guest.Config == nil || NewIdentity(p.deps.KubeCluster, id, claim).HasLostMark(*guest.Config)):
		return true
	case !launched:
		return !LaunchedByOther(claim)
	}
	// A Snapshot that is older than the VM does not show it.
	return !snapshot.Taken.After(at.Add(time.Second))
}

// RecordHost records the Host that a VM is on, and reports whether it was seen on another one before.
func (p *Provider) RecordHost(vm VM) (moved bool) {
	return p.deps.Launches.RecordHost(vm.ClaimUID, vm.Host)
}

// IsLaunched reports whether the launch of a Claim's VM has ended.
func (p *Provider) IsLaunched(claim *karpv1.NodeClaim) bool { return p.deps.IsLaunched(claim) }

// LaunchedAt returns a time when a Claim's VM was running for the first time; false if it was not.
func (p *Provider) LaunchedAt(claim *karpv1.NodeClaim) (time.Time, bool) {
	return p.deps.LaunchedAt(claim)
}

// ImageDrift describes how the Template that a Claim's VM was cloned from differs from that of its
// class; empty if it does not. It is empty, too, if the class has no Template in its place any more, if
// that cannot be read, or if the VM was adopted.
func (p *Provider) ImageDrift(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) string {
	in, ok := p.deps.IntentOf(claim)
	if !ok || !in.Known || in.TemplateID == 0 {
		return ""
	}
	view, current := p.deps.Inventory.View(), ""
	for _, template := range templatesLike(view, class, in) {
		if mark, ok := ownership.Read(template.Config.Description()); ok && mark.Newer() {
			return ""
		}
		if current = ownership.ImageID(template.VMID, *template.Config); current == in.ImageID {
			return ""
		}
	}
	if current == "" {
		return ""
	}
	return fmt.Sprintf("the image of its template changed from %q to %q", in.ImageID, current)
}

// MachineDrift describes how a Claim's VM differs from its machine; empty if it does not, or if that is
// unknown.
func (p *Provider) MachineDrift(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) string {
	in, ok := p.deps.IntentOf(claim)
	if !ok || !in.Known {
		return ""
	}
	return MachineDrift(in, class)
}

// Intent returns what is known about a Claim's VM.
func (p *Provider) Intent(claim *karpv1.NodeClaim) (Intent, bool) { return p.deps.IntentOf(claim) }

// HostObstacle returns why the Host of a VM is not available for a purpose; see inventory.HostState.Obstacle.
func (p *Provider) HostObstacle(vm VM, purpose inventory.Purpose) inventory.HostReason {
	host, _ := p.deps.Inventory.View().Host(vm.Region, vm.Host)
	return host.Obstacle(purpose).Reason
}

// IsUnavailable reports whether the Cluster of a Claim's VM is unavailable. Then the last
// Snapshot is no reason to replace the VM.
func (p *Provider) IsUnavailable(claim *karpv1.NodeClaim) bool {
	in, ok := ReadIntent(claim)
	return ok && p.deps.Inventory.View().Unavailable(in.Region) != nil
}

// HostOf returns the Host that a Claim's VM is on, or will be.
func (p *Provider) HostOf(claim *karpv1.NodeClaim) (inventory.HostState, bool) {
	in, ok := ReadIntent(claim)
	if !ok {
		return inventory.HostState{}, false
	}
	view := p.deps.Inventory.View()
	if guest, visible := view.Guest(in.Region, in.VMID); visible {
		in.Host = guest.Host // it may have been migrated
	}
	return view.Host(in.Region, in.Host)
}
