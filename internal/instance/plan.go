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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// InsufficientCapacityError says why nothing that the Claim allows can be launched now.
type InsufficientCapacityError struct{ err error }

func (e *InsufficientCapacityError) Error() string { return e.err.Error() }
func (e *InsufficientCapacityError) Unwrap() error { return e.err }

// Overlay applies a pool's NodeOverlays to instance types; nil changes nothing.
type Overlay func([]*cloudprovider.InstanceType) ([]*cloudprovider.InstanceType, error)

// Plan decides what VM a Claim gets and where, reserves it, and writes the
// decision on the Claim. It asks Proxmox nothing, unless address pools are used for
// the first time. A Claim that has a plan keeps
// it: its VMID is adopted or given up, never probed further.
func (p *Provider) Plan(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, overlay Overlay) (Intent, error) {
	in, ok, err := ReadIntent(claim)
	if err != nil {
		return Intent{}, err
	}
	if ok {
		p.Inventory.Ledger().Restore(in.Reservation(claim))
		return in, nil
	}
	if p.Types.IsBound(class) {
		// A core that was promised before a restart, to a VM that is not made yet,
		// stands nowhere but on its Claim.
		if err := p.recallClaims(ctx); err != nil {
			return Intent{}, err
		}
	}
	// First, because no zone with pools counts before it is known who has which address.
	known, err := p.addressing(ctx, class)
	if err != nil {
		return Intent{}, err
	}
	request, err := p.Types.Request(class, claim, instancetype.RequestOptions{Overlay: overlay})
	if err != nil {
		return Intent{}, err
	}
	in, err = p.record(ctx, claim, func(view inventory.View) (Intent, error) {
		chosen, err := placement.Choose(view, request)
		if err != nil {
			return Intent{}, err
		}
		return p.intentFor(view, claim, class, chosen, known)
	})
	p.countExhausted(class, err)
	return in, err
}

// CheckCapacity tells whether a Claim could be launched now: a *InsufficientCapacityError says, Host by
// Host, why not. Nothing is reserved.
func (p *Provider) CheckCapacity(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	request, err := p.Types.Request(class, claim, instancetype.RequestOptions{})
	if err != nil {
		return err
	}
	if _, err := placement.Choose(p.Inventory.View(), request); err != nil {
		return &InsufficientCapacityError{err}
	}
	return nil
}

// Remember puts a Claim's reservation back into the ledger, if it is not there.
func (p *Provider) RestoreReservation(claim *karpv1.NodeClaim) {
	// Of a newer intent it is only the VMID, which nobody else must get.
	if in, ok, err := readPlace(claim); err == nil && ok {
		p.Inventory.Ledger().Restore(in.Reservation(claim))
	}
}

// Forget gives back what a Claim holds that is gone without having been deleted: core
// does not ask for that when the Claim never got its providerID.
func (p *Provider) ReleaseClaim(claimUID string) {
	p.Inventory.Ledger().Release(claimUID)
	p.memory.forget(claimUID)
}

// rangeFullPause is how long a region without free VMIDs is left alone.
const rangeFullPause = time.Minute

// record reserves what a decision took and writes it on the Claim. The decision
// is pure: it runs under the ledger's lock.
func (p *Provider) record(ctx context.Context, claim *karpv1.NodeClaim, decide func(inventory.View) (Intent, error)) (Intent, error) {
	var in Intent
	_, err := p.Inventory.Ledger().Reserve(string(claim.UID), func(view inventory.View) (inventory.Reservation, error) {
		var err error
		if in, err = decide(view); err != nil {
			return inventory.Reservation{}, err
		}
		return in.Reservation(claim), nil
	})
	if err != nil {
		return Intent{}, &InsufficientCapacityError{err}
	}
	if in.VMID == 0 {
		// The ledger already had a reservation for this Claim: an earlier call
		// decided, and does not know whether it could write it down.
		return p.settleRecord(ctx, claim, fmt.Errorf("recording the plan of nodeclaim %s: a reservation stands without an intent", claim.Name))
	}
	if err := annotate(ctx, p.Kube, claim, map[string]string{v1alpha1.AnnotationLaunchIntent: in.Encode()}); err != nil {
		if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
			// Not the API server's no: it may have written all the same.
			return p.settleRecord(ctx, claim, err)
		}
		p.Inventory.Ledger().Release(string(claim.UID))
		return Intent{}, err
	}
	p.memory.planned(string(claim.UID))
	log.FromContext(ctx).V(1).Info("planned a VM", "region", in.Region, "host", in.Host, "vmid", in.VMID, "instance-type", in.InstanceType, "parked", in.Parked)
	return in, nil
}

// settleRecord looks whether an intent was written after all. What it promises must not
// be promised to others, and an address is nowhere else yet.
func (p *Provider) settleRecord(ctx context.Context, claim *karpv1.NodeClaim, failure error) (Intent, error) {
	stored := &karpv1.NodeClaim{}
	err := p.Boot.Reader.Get(ctx, client.ObjectKeyFromObject(claim), stored)
	if err != nil && !apierrors.IsNotFound(err) {
		return Intent{}, failure // not known yet: the reservation stands, the next call looks again
	}
	in, ok, err := ReadIntent(stored)
	if err == nil && ok && stored.UID == claim.UID {
		return in, nil
	}
	p.Inventory.Ledger().Release(string(claim.UID))
	return Intent{}, failure
}

// pickVMID finds the VMID of a Claim's VM.
func (p *Provider) pickVMID(view inventory.View, region string, claim *karpv1.NodeClaim) (int, error) {
	vmid, err := placement.PickVMID(view, region, string(claim.UID), p.Settings.VMIDs)
	if errors.Is(err, placement.ErrRangeFull) {
		// Not a matter of one Host: without VMIDs the whole region has no room.
		for _, host := range view.Hosts() {
			if host.Region == region {
				p.Types.MarkUnavailable(instancetype.Offerings{Zone: placement.Zone{Region: host.Region, Host: host.Name}}, err.Error(), rangeFullPause)
			}
		}
	}
	return vmid, err
}

// intentFor completes a placement with all that the launch will need; with addresses
// if it is told what is known of them.
func (p *Provider) intentFor(
	view inventory.View, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass, chosen placement.Placement, known *addressing,
) (Intent, error) {
	vmid, err := p.pickVMID(view, chosen.Zone.Region, claim)
	if err != nil {
		return Intent{}, err
	}
	template, err := templateFor(view, class, chosen)
	if err != nil {
		return Intent{}, err
	}
	in := Intent{
		Region: chosen.Zone.Region, Host: chosen.Zone.Host, VMID: vmid,
		TemplateHost: template.Host, TemplateID: template.VMID, ImageID: ownership.ImageID(template.VMID, *template.Config),
		InstanceType: chosen.InstanceType, CapacityType: karpv1.CapacityTypeOnDemand,
		Cores: chosen.Need.CPUs, MemoryMiB: int(chosen.Need.MemoryBytes >> 20), DiskBytes: chosen.Need.DiskBytes,
		Pool: class.Spec.ResourcePool, Devices: chosen.Devices, Binding: bindingOf(chosen.Binding),
		Time: p.Clock.Now().UTC(),
	}
	if err := in.chooseStorages(view, class, template); err != nil {
		return Intent{}, err
	}
	in.MACs = map[string]string{}
	snapshot := view.Snapshots[in.Region]
	taken := macTaken(snapshot)
	for _, nic := range template.Config.Network().NICs() {
		in.MACs[nic.Slot] = DeriveMAC(snapshot.Options.MACPrefix, string(claim.UID), nic.Slot, taken)
	}
	if known != nil {
		if in.Network, err = p.assign(view, claim, class, template, in, known); err != nil {
			return Intent{}, err
		}
	}
	return in, nil
}

// findTemplate resolves the Template that serves a Host, as the NodeClass's
// status lists it.
func findTemplate(view inventory.View, class *v1alpha1.ProxmoxNodeClass, zone placement.Zone) (inventory.Guest, error) {
	for _, entry := range class.Status.SelectedZones {
		selected, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil || selected.Region != zone.Region || selected.Host != zone.Host {
			continue
		}
		guest, ok := view.Guest(zone.Region, selected.VMID)
		if !ok || guest.Config == nil || !guest.Config.IsTemplate() {
			return inventory.Guest{}, fmt.Errorf("%s/%s: template %d of nodeclass %s is not there any more", zone.Region, zone.Host, selected.VMID, class.Name)
		}
		return guest, nil
	}
	return inventory.Guest{}, fmt.Errorf("%s/%s: nodeclass %s has no template there", zone.Region, zone.Host, class.Name)
}

// chooseStorages fixes where the disk and the boot drive go, and whether the
// clone can be linked: that needs the same storage and a kind that can.
func (in *Intent) chooseStorages(view inventory.View, class *v1alpha1.ProxmoxNodeClass, template inventory.Guest) error {
	disk, ok := template.Config.Drives().Boot()
	if !ok {
		return fmt.Errorf("template %d on host %s has no boot disk", template.VMID, template.Host)
	}
	snapshot := view.Snapshots[in.Region]
	in.Storage = disk.Storage
	if class.Spec.BootDevice.Storage != "" {
		in.Storage = class.Spec.BootDevice.Storage
	}
	in.Full = class.Spec.BootDevice.FullClone || in.Storage != disk.Storage || !linkable(snapshot, template)
	if !class.Spec.MetadataOptions.Rendered() {
		return nil
	}
	in.Firmware = class.Spec.MetadataOptions.Firmware()
	storage, err := ISOStorage(snapshot, in.Host, class.Spec.MetadataOptions.Storage)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", in.Region, in.Host, err)
	}
	in.ISOStorage = storage
	return nil
}

// linkable tells whether all disks of a Template can be linked to. Thick LVM and
// raw iSCSI cannot.
func linkable(snapshot *inventory.Snapshot, template inventory.Guest) bool {
	for _, drive := range template.Config.Drives().All() {
		if drive.IsCDROM || drive.Storage == "" {
			continue
		}
		switch snapshot.Storages[inventory.StorageKey{Host: template.Host, Storage: drive.Storage}].Type {
		case "lvmthin", "zfspool", "rbd", "dir", "nfs", "cifs", "btrfs", "cephfs":
		default:
			return false
		}
	}
	return true
}

// ISOStorage names the storage of a Host that takes boot drives: the one asked
// for, else the first by name that has iso content, local ones before shared.
func ISOStorage(snapshot *inventory.Snapshot, host, wanted string) (string, error) {
	var candidates []proxmox.StorageRow
	for key, row := range snapshot.Storages {
		if key.Host == host && slices.Contains(row.Content, "iso") && row.Available && (wanted == "" || wanted == key.Storage) {
			candidates = append(candidates, row)
		}
	}
	if len(candidates) == 0 {
		return "", errors.New(lacksISO(snapshot, host, wanted))
	}
	slices.SortFunc(candidates, func(a, b proxmox.StorageRow) int {
		if a.Shared != b.Shared {
			if a.Shared {
				return 1
			}
			return -1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return candidates[0].Name, nil
}

// holdsFiles are the kinds of storage that can take an ISO; the others hold disks.
var holdsFiles = []string{"dir", "nfs", "cifs", "cephfs", "btrfs", "glusterfs"}

// lacksISO says why no boot drive can be put on a Host, and what would help. The
// command names all content: Proxmox replaces the list, and what is left out is lost.
func lacksISO(snapshot *inventory.Snapshot, host, wanted string) string {
	const remedy = "run: pvesm set %s --content %s"
	if wanted != "" {
		row, ok := snapshot.Storages[inventory.StorageKey{Host: host, Storage: wanted}]
		content := strings.Join(row.Content, ",")
		switch {
		case !ok:
			return fmt.Sprintf("spec.metadataOptions.storage %q is not on this host, which has %s", wanted, strings.Join(snapshot.StoragesOf(host), ", "))
		case slices.Contains(row.Content, "iso"):
			return fmt.Sprintf("spec.metadataOptions.storage %q is not available", wanted)
		case !slices.Contains(holdsFiles, row.Type):
			return fmt.Sprintf("spec.metadataOptions.storage %q is of type %s, which takes no iso content; name one that holds files", wanted, row.Type)
		}
		return fmt.Sprintf("spec.metadataOptions.storage %q takes %s but no iso content; "+remedy, wanted, content, wanted, "iso,"+content)
	}
	var found proxmox.StorageRow
	for key, row := range snapshot.Storages {
		if key.Host == host && slices.Contains(holdsFiles, row.Type) && (found.Name == "" || row.Name < found.Name) {
			found = row
		}
	}
	const none = "no storage takes iso content, which the boot drive needs; "
	if found.Name == "" {
		return none + "run: pvesm add dir iso --path /var/lib/iso --content iso"
	}
	return none + fmt.Sprintf(remedy, found.Name, strings.Join(append([]string{"iso"}, found.Content...), ","))
}

// macTaken looks through the configurations that we know of.
func macTaken(snapshot *inventory.Snapshot) func(string) bool {
	taken := map[string]bool{}
	for _, guest := range snapshot.Guests {
		if guest.Config == nil {
			continue
		}
		for _, nic := range guest.Config.Network().NICs() {
			taken[strings.ToUpper(nic.MAC)] = true
		}
	}
	return func(mac string) bool { return taken[mac] }
}
