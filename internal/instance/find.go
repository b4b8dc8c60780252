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

	"k8s.io/apimachinery/pkg/types"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// VM is one of ours, as it was found on Proxmox.
type VM struct {
	Identity
	Host string
	Name string
	// Status is the power state as the Cluster reports it, up to a poll old.
	Status string
	// HostOnline is false while its Host is away.
	HostOnline bool
	// HAState is what Proxmox's HA does with it; empty for a VM that is not under HA.
	HAState string
	// newer: a newer controller marked it, so it is known and not touched.
	newer  bool
	config proxmox.VMConfig
}

// bootVolume is the ISO in its boot drive, if it still has one.
func (v VM) bootVolume() string {
	for _, drive := range v.config.Drives().All() {
		if drive.VolumeID == isoVolume(drive.Storage, v.Identity) {
			return drive.VolumeID
		}
	}
	return ""
}

// ProviderID of the VM.
func (v VM) ProviderID() string {
	return v1alpha1.ProviderID{Region: v.Region, VMID: v.VMID}.String()
}

// UnderHA tells whether Proxmox's HA decides when the VM runs: a resource that it is
// told to ignore it leaves alone.
func (v VM) UnderHA() bool { return v.HAState != "" && v.HAState != "ignored" }

// ErrNotPolled says that a Cluster was never read, so that nothing can be known about it.
var ErrNotPolled = errors.New("the cluster was never read")

// List finds all VMs of this Kubernetes cluster. It reads VMs, never Nodes. A
// Cluster that does not answer contributes what was last seen; one that never
// answered makes the answer an error, because a short list would be taken for
// "gone".
func (p *Provider) List() ([]VM, error) {
	view := p.Inventory.View()
	var out []VM
	for region := range p.Clients {
		snapshot, ok := view.Snapshots[region]
		if !ok {
			// No failure either: the first poll is still under way.
			return nil, fmt.Errorf("listing VMs of region %s, %w", region, errors.Join(ErrNotPolled, view.Failures[region]))
		}
		for _, guest := range snapshot.Guests {
			if vm, ok := p.ours(snapshot, guest); ok {
				out = append(out, vm)
			}
		}
	}
	slices.SortFunc(out, func(a, b VM) int { return strings.Compare(a.ProviderID(), b.ProviderID()) })
	return out, nil
}

// ours tells whether a guest is a VM of this Kubernetes cluster.
func (p *Provider) ours(snapshot *inventory.Snapshot, guest inventory.Guest) (VM, bool) {
	if guest.Config == nil || guest.Template {
		return VM{}, false
	}
	id, ok := ReadIdentity(snapshot.Region, *guest.Config)
	if !ok || id.KubeCluster != p.KubeCluster || id.VMID != guest.VMID {
		return VM{}, false
	}
	newer := id.HasNewerMark(*guest.Config)
	if owns, _ := id.Owns(*guest.Config); !owns && !newer {
		return VM{}, false
	}
	return VM{
		Identity: id, Host: guest.Host, Name: guest.Name, newer: newer,
		Status:     guest.Status,
		HostOnline: snapshot.Hosts[guest.Host].Online,
		HAState:    guest.HAState,
		config:     *guest.Config,
	}, true
}

// Get finds one VM. proxmox.ErrNotFound is proof that it is gone: the Cluster was
// asked just now, and whatever has the VMID is not ours.
func (p *Provider) Get(ctx context.Context, id v1alpha1.ProviderID) (VM, error) {
	vm, err := p.find(ctx, id)
	if errors.Is(err, errMoved) {
		vm, err = p.find(ctx, id)
	}
	return vm, err
}

// errMoved says that a VM is not where the list has just shown it: it was moved in
// between, or is going. It is no proof of anything.
var errMoved = errors.New("it is not on the host any more that it was listed on")

func (p *Provider) find(ctx context.Context, id v1alpha1.ProviderID) (VM, error) {
	client, err := p.client(id.Region)
	if err != nil {
		return VM{}, err
	}
	if err := p.Inventory.Refresh(ctx, id.Region); err != nil {
		return VM{}, fmt.Errorf("looking for VM %d in region %s, %w", id.VMID, id.Region, err)
	}
	snapshot, ok := p.Inventory.View().Snapshots[id.Region]
	if !ok {
		return VM{}, fmt.Errorf("looking for VM %d in region %s, %w", id.VMID, id.Region, ErrNotPolled)
	}
	guest, ok := snapshot.Guests[id.VMID]
	if !ok {
		return VM{}, fmt.Errorf("VM %d in region %s: %w", id.VMID, id.Region, provenAbsent(ctx, client, snapshot, id.VMID))
	}
	cfg, err := client.VMConfig(ctx, guest.Host, id.VMID)
	if errors.Is(err, proxmox.ErrNotFound) {
		return VM{}, fmt.Errorf("reading VM %d on host %s, %w", id.VMID, guest.Host, errMoved)
	}
	if err != nil {
		return VM{}, err
	}
	guest.Config = &cfg
	vm, ok := p.ours(snapshot, guest)
	if !ok && Configured(cfg) && (Identity{Region: id.Region, VMID: id.VMID, ClaimUID: strings.ToLower(cfg.SMBIOS().UUID)}).HasLostMark(cfg) {
		return VM{}, fmt.Errorf("VM %d on host %s has the SMBIOS fields of a node, but no ownership mark: another controller made it, or its notes have lost the mark", id.VMID, guest.Host)
	}
	if !ok {
		return VM{}, fmt.Errorf("VM %d in region %s is not ours: %w", id.VMID, id.Region, proxmox.ErrNotFound)
	}
	return vm, nil
}

// provenAbsent asks about a VMID that no row shows. A list is filtered silently by
// what the token may see; a direct question is not.
func provenAbsent(ctx context.Context, client proxmox.Client, snapshot *inventory.Snapshot, vmid int) error {
	for name, host := range snapshot.Hosts {
		if !host.Online {
			continue
		}
		_, err := client.VMConfig(ctx, name, vmid)
		if err == nil {
			return errors.New("it appeared just now")
		}
		return err
	}
	return errors.New("no host is online to ask")
}

// DeleteOrphan removes a VM of ours whose Claim is gone, with its boot drive and
// join token. True when nothing is left of it.
func (p *Provider) DeleteOrphan(ctx context.Context, vm VM) (bool, error) {
	client, err := p.client(vm.Region)
	if err != nil {
		return false, err
	}
	release, ok := p.guard.delete(ctx, vm.ClaimUID)
	if !ok {
		return false, nil
	}
	defer release()
	// One that does not go must not keep others waiting.
	ctx, cancel := context.WithTimeout(ctx, p.Settings.OperationTimeout)
	defer cancel()
	cfg, outcome, err := p.removeVM(ctx, client, vm.Identity, vm.Host)
	if err != nil || (outcome != vmRemoved && outcome != vmAbsent) {
		return false, err
	}
	volume := vm.bootVolume()
	if volume == "" && outcome == vmRemoved {
		// The Snapshot may have read it before its boot drive was there.
		vm.config = cfg
		volume = vm.bootVolume()
	}
	if volume != "" {
		if err := p.deleteVolume(ctx, client, vm.Host, volume); err != nil {
			return false, err
		}
	}
	p.Inventory.Ledger().Release(vm.ClaimUID)
	return true, p.Boot.Tokens.Revoke(ctx, types.UID(vm.ClaimUID))
}

// MayExist tells whether a Claim's VM cannot be ruled out although no Snapshot
// shows it as ours: it is being launched, its row was not read yet, or its
// Cluster does not answer.
func (p *Provider) MayExist(claim *karpv1.NodeClaim) bool {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return false
	}
	view := p.Inventory.View()
	guest, seen := view.Guest(id.Region, id.VMID)
	snapshot := view.Snapshots[id.Region]
	completed, launched := claim.Annotations[v1alpha1.AnnotationLaunchCompleted]
	switch {
	case snapshot == nil || view.Failures[id.Region] != nil:
		return true
	case seen && (guest.Config == nil || p.identityOf(id, claim).HasLostMark(*guest.Config) || unadopted(claim, id.VMID, *guest.Config)):
		return true
	case !launched:
		return claim.Annotations[v1alpha1.AnnotationLaunchIntent] != ""
	}
	// A Snapshot from before the VM was there says nothing about it.
	at, err := time.Parse(time.RFC3339, completed)
	return err == nil && !snapshot.Taken.After(at.Add(time.Second))
}

// RecordHost writes on a Claim where its VM was migrated to, and since when. True
// when that is news.
func (p *Provider) RecordHost(ctx context.Context, claim *karpv1.NodeClaim, vm VM) (bool, error) {
	in, ok, err := readPlace(claim)
	if err != nil || !ok {
		return false, err
	}
	noted, ok := claim.Annotations[v1alpha1.AnnotationHost]
	if !ok {
		noted = in.Host
	}
	if noted == vm.Host {
		return false, nil
	}
	return true, annotate(ctx, p.Kube, claim, map[string]string{
		v1alpha1.AnnotationHost:      vm.Host,
		v1alpha1.AnnotationHostSince: p.Clock.Now().UTC().Format(time.RFC3339),
	})
}

// MigratedSince tells since when a Claim's VM is on another Host than its zone
// label says.
func MigratedSince(claim *karpv1.NodeClaim) (time.Time, bool) {
	in, ok, err := readPlace(claim)
	host, moved := claim.Annotations[v1alpha1.AnnotationHost]
	if err != nil || !ok || !moved || host == in.Host {
		return time.Time{}, false
	}
	since, err := time.Parse(time.RFC3339, claim.Annotations[v1alpha1.AnnotationHostSince])
	return since, err == nil
}

// CurrentImage is the image that a Claim's VM would be cloned from now, on its
// Host. Not known while the class has no Template there.
func (p *Provider) CurrentImage(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) (string, bool) {
	in, ok, err := ReadIntent(claim)
	if err != nil || !ok || in.TemplateID == 0 {
		return "", false // of an adopted VM nobody knows what it was made of
	}
	template, err := in.currentTemplate(p.Inventory.View(), class)
	if err != nil {
		return "", false
	}
	if mark, ok := ownership.Read(template.Config.Description()); ok && mark.Newer() {
		return "", false
	}
	return ownership.ImageID(template.VMID, *template.Config), true
}

// HostOf is the account of the Host that a Claim's VM is on, or will be.
func (p *Provider) HostOf(claim *karpv1.NodeClaim) (inventory.HostState, bool) {
	in, ok, err := readPlace(claim)
	if err != nil || !ok {
		return inventory.HostState{}, false
	}
	view := p.Inventory.View()
	if guest, visible := view.Guest(in.Region, in.VMID); visible {
		in.Host = guest.Host // it may have been migrated
	}
	return view.Host(in.Region, in.Host)
}
