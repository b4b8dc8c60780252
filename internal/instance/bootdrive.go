// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// isoName of a Claim's boot drive. It names the Claim and the Kubernetes cluster,
// so that an orphan can be told from somebody else's file.
func isoName(id Identity) string {
	return fmt.Sprintf("karpenter-%s-%s.iso", short(id.KubeCluster), id.ClaimUID)
}

func isoVolume(storage string, id Identity) string { return storage + ":iso/" + isoName(id) }

// short is enough of a Kubernetes cluster's UID to tell a few apart.
func short(uid string) string {
	head, _, _ := strings.Cut(uid, "-")
	return head
}

// driveVolume is the ISO for the VM's drive, empty when it gets none.
func (l *launch) driveVolume() string {
	if l.intent.ISOStorage == "" || l.intent.Firmware {
		return ""
	}
	return isoVolume(l.intent.ISOStorage, l.id)
}

// ErrClaimBusy says that a launch or a delete of the same Claim is at work; try again.
var ErrClaimBusy = errors.New("the claim is busy")

// CleanupBootDrive empties the VM's boot drive, deletes the ISO and revokes the
// join token: the guest has joined and needs neither again. The order matters:
// Proxmox deletes an attached ISO without complaint, and the next start fails.
func (p *Provider) CleanupBootDrive(ctx context.Context, claim *karpv1.NodeClaim) error {
	in, ok, err := ReadIntent(claim)
	if err != nil {
		return err
	}
	if ok && in.ISOStorage != "" {
		err := p.detachBootDrive(ctx, claim, in)
		if errors.Is(err, errNoRoot) {
			// The VM must keep its file, since it names it. The token is of no use to it.
			return errors.Join(err, p.Boot.Revoke(ctx, claim))
		}
		if err != nil {
			return err
		}
	}
	if err := p.Boot.Revoke(ctx, claim); err != nil {
		return fmt.Errorf("deleting the join token, %w", err)
	}
	log.FromContext(ctx).V(1).Info("took back the boot drive and the join token")
	return annotate(ctx, p.Kube, claim, map[string]string{v1alpha1.AnnotationBootDataStatus: v1alpha1.BootDataInitialized})
}

func (p *Provider) detachBootDrive(ctx context.Context, claim *karpv1.NodeClaim, in Intent) error {
	client, err := p.client(in.Region)
	if err != nil {
		return err
	}
	ctx, release, ok := p.guard.launch(ctx, string(claim.UID))
	if !ok {
		// The launch has noted its end and not let go yet. To go on without the
		// drive would mark it as taken back, and nobody would come for it again.
		return ErrClaimBusy
	}
	defer release()
	host := in.Host
	if guest, ok := p.Inventory.View().Guest(in.Region, in.VMID); ok {
		host = guest.Host
	}
	cfg, err := client.VMConfig(ctx, host, in.VMID)
	if err != nil {
		return err
	}
	id := p.identity(in, claim)
	if ours, why := id.Owns(cfg); !ours {
		return fmt.Errorf("VM %d on host %s is not ours: %s", in.VMID, host, why)
	}
	volume := isoVolume(in.ISOStorage, id)
	if in.Firmware {
		if err := p.takeFirmwareBack(ctx, in, host, cfg); err != nil {
			return err
		}
	}
	for _, drive := range cfg.Drives().All() {
		if drive.VolumeID != volume {
			continue
		}
		change := proxmox.ConfigChange{Set: map[string]string{drive.Slot: "none,media=cdrom"}, Digest: cfg.Digest}
		if err := client.UpdateVM(ctx, host, in.VMID, change); err != nil {
			return fmt.Errorf("emptying drive %s, %w", drive.Slot, err)
		}
	}
	// Where the VM was launched, not where it is now: that is where the ISO went.
	return p.deleteVolume(ctx, client, in.Host, volume)
}

// deleteVolume removes a volume and waits until it is gone.
func (p *Provider) deleteVolume(ctx context.Context, client proxmox.Client, host, volume string) error {
	task, err := client.DeleteVolume(ctx, host, volume)
	if err == nil && task != "" {
		_, err = p.wait(ctx, client, task, "imgdel")
	}
	if err != nil && !errors.Is(err, proxmox.ErrNotFound) {
		return fmt.Errorf("deleting volume %s on host %s, %w", volume, host, err)
	}
	return nil
}

// sortedSlots orders net0, net2, net10 as people do.
func sortedSlots(bySlot map[string]string) []string {
	slots := make([]string, 0, len(bySlot))
	for slot := range bySlot {
		slots = append(slots, slot)
	}
	slices.SortFunc(slots, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return slots
}
