// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/due"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// sweepInterval is how often a Host is swept without a request.
const sweepInterval = 10 * time.Minute

// newSweeps returns when the Hosts were swept. The value is after which time a grace period ends, 0 if none
// has begun.
func newSweeps(c clock.PassiveClock) *due.Cache[observed.HostName, time.Duration] {
	policy := due.Policy{Every: sweepInterval, Retry: failureBackoff}
	return due.New[observed.HostName, time.Duration](c, func(observed.HostName) due.Policy { return policy })
}

// isSweepDue reports whether a Host is to be swept: a sweep was requested, a grace period has ended, or the
// last sweep is sweepInterval ago and the call budget allows another one.
func (p *Provider) isSweepDue(host observed.HostName) bool {
	entry, age, isDue := p.sweeps.Peek(host)
	switch {
	case entry.Failures == 0 && entry.Value > 0 && age >= entry.Value:
		return true
	case isDue && entry.Known && !entry.Changed:
		if isDue = p.inventory.TryAcquire(host.Region, poll.ReadImages); isDue {
			p.sweeps.Invalidate(host)
		}
	}
	return isDue
}

// requestSweep makes a sweep due on every Host.
func (p *Provider) requestSweep() {
	for _, host := range p.inventory.View().Hosts() {
		p.sweeps.Invalidate(observed.HostName{Region: host.Region, Host: host.Name})
	}
}

// sweepIfDue sweeps the Host if a sweep is due. Otherwise it returns the error of the last one.
func (r *hostReconciler) sweepIfDue(ctx context.Context, obs observation) (time.Duration, error) {
	host := observed.HostName{Region: r.Region, Host: r.Host}
	if r.isSweepDue(host) {
		return r.sweep(ctx, obs)
	}
	if entry, _, _ := r.sweeps.Peek(host); !errors.Is(entry.Err, errStillRunning) {
		return 0, entry.Err
	}
	return 0, nil
}

// sweep deletes what nothing needs on the Host, and returns the remaining time of the grace period.
func (r *hostReconciler) sweep(ctx context.Context, obs observation) (after time.Duration, err error) {
	host := observed.HostName{Region: r.Region, Host: r.Host}
	_, err = r.sweeps.Read(ctx, host, func(ctx context.Context) (time.Duration, error) {
		var err error
		if after, err = r.deleteUnneededVolumes(ctx, obs); ctx.Err() != nil {
			r.sweeps.Invalidate(host)
			return 0, nil //nolint:nilerr // it is not the sweep that failed
		}
		return after, err
	})
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return after, err
}

// ownVolume is a volume that we created besides the disks of VMs: a downloaded image or the boot drive of a
// builder VM.
type ownVolume struct {
	storage, volume, kind string
	// image is the key of an image, vmid the VMID of a builder VM.
	image string
	vmid  int
}

// deleteUnneededVolumes deletes images that we downloaded and boot drives of builder VMs that nothing needs for the grace
// period. One that cannot be deleted does not affect the others. It returns the remaining time of the grace
// period.
func (r *hostReconciler) deleteUnneededVolumes(ctx context.Context, obs observation) (after time.Duration, err error) {
	usage, err := r.usage(ctx)
	if err != nil {
		return 0, err
	}
	found, err := r.listOwnVolumes(ctx, obs, usage)
	errs := []error{err}
	if slices.ContainsFunc(found, func(v ownVolume) bool { return v.vmid != 0 }) {
		// The VM of a boot drive was created before it: if it exists, the new view shows it.
		if err := r.inventory.Refresh(ctx, r.Region); err != nil {
			return 0, explain(err, obs.location, "polling the cluster", "")
		}
	}
	for _, v := range found {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		left, err := r.deleteIfUnneeded(ctx, v)
		errs = append(errs, explain(err, obs.location, fmt.Sprintf("deleting %s %s", v.kind, v.volume), v.storage))
		after = soonest(after, left)
	}
	return after, joinErrors(errs...)
}

// listOwnVolumes lists our images and boot drives on the active storages of the Host. The error is that of
// those that cannot be listed. Without access to a storage we cannot have created a volume there, unless the
// spec names it.
func (r *hostReconciler) listOwnVolumes(ctx context.Context, obs observation, usage Usage) (found []ownVolume, err error) {
	prepare := r.desired.Spec.Prepare
	prepared := r.desired.Deleted || slices.ContainsFunc(usage.Desired, func(d Desired) bool { return d.Spec.Prepare != nil })
	var errs []error
	list := func(storage, content, kind string, configured bool) {
		volumes, err := r.client.Volumes(ctx, r.Host, storage, content)
		if _, hidden := errors.AsType[*proxmox.ForbiddenError](err); hidden && !configured {
			return
		}
		errs = append(errs, explain(err, obs.location, fmt.Sprintf("listing the %ss on storage %s", kind, storage), storage))
		for _, volume := range volumes {
			v := ownVolume{storage: storage, volume: volume.ID, kind: kind}
			if v.parse(r.kubeCluster) {
				found = append(found, v)
			}
		}
	}
	for _, storage := range obs.view.Snapshots[r.Region].StoragesOf(r.Host) {
		row := obs.view.Snapshots[r.Region].Storages[observed.StorageKey{Host: r.Host, Storage: storage}]
		if row.Available && slices.Contains(row.Content, "import") {
			list(storage, "import", "image", slices.Contains(r.desired.Spec.StorageIDs, storage))
		}
		if row.Available && slices.Contains(row.Content, "iso") && prepared {
			list(storage, "iso", "boot drive", prepare != nil && (prepare.Storage == "" || prepare.Storage == storage))
		}
	}
	return found, joinErrors(errs...)
}

// parse sets what the name of the volume contains, and reports whether it is ours.
func (v *ownVolume) parse(kubeCluster string) bool {
	v.image, _ = parseImageKey(v.volume, kubeCluster)
	if match := bootDrivePattern.FindStringSubmatch(v.volume); match != nil && match[1] == clusterKey(kubeCluster) {
		v.vmid, _ = strconv.Atoi(match[2]) // a number that is no VMID is not ours
	}
	return v.image != "" || v.vmid != 0
}

// deleteIfUnneeded deletes a volume that is unneeded for the grace period, and returns the remaining time of the
// period. A ProxmoxTemplate that is being deleted has none.
func (r *hostReconciler) deleteIfUnneeded(ctx context.Context, v ownVolume) (time.Duration, error) {
	usage, err := r.usage(ctx)
	if err != nil {
		return 0, err
	}
	image, err := NewImage(r.desired.Spec.SourceImage, r.kubeCluster)
	immediate := r.desired.Deleted && (v.vmid != 0 || err == nil && image.volume == "" && image.Key == v.image)
	needed := r.isImageNeeded(v, usage)
	if v.vmid != 0 {
		if needed, err = r.isBootDriveNeeded(ctx, v); err != nil {
			return 0, err
		}
	}
	at := volumeAt{r.Region, r.Host, v.volume}
	if r.storage(v.storage).Shared {
		at.host = ""
	}
	left, unneeded := r.graceLeft(at, needed)
	if !unneeded || left > 0 && !immediate {
		return left, nil
	}
	if err := r.deleteVolume(ctx, v.volume); err != nil {
		return 0, err
	}
	r.graceLeft(at, true) // another volume may get this name
	log.FromContext(ctx).Info("deleted unused "+v.kind, "volume", v.volume, "host", r.Host)
	return 0, nil
}

// volumeAt identifies a volume on a Host, or without a Host, on a shared storage.
type volumeAt struct{ region, host, volume string }

// storage returns the row of a storage of the Host.
func (r *hostReconciler) storage(name string) proxmox.StorageRow {
	return r.inventory.View().Snapshots[r.Region].Storages[observed.StorageKey{Host: r.Host, Storage: name}]
}

// isImageNeeded reports whether a ProxmoxTemplate uses an image on a Host that has the storage.
func (r *hostReconciler) isImageNeeded(v ownVolume, usage Usage) bool {
	snapshot, shared := r.inventory.View().Snapshots[r.Region], r.storage(v.storage).Shared
	return slices.ContainsFunc(usage.Desired, func(desired Desired) bool {
		image, err := NewImage(desired.Spec.SourceImage, r.kubeCluster)
		switch {
		case err != nil || image.Key != v.image:
			return false
		case !desired.appliesTo(r.Region):
			return desired.UID == r.UID && r.isInUse(usage)
		}
		for host := range snapshot.Hosts {
			location, _ := selectStorages(snapshot, host, desired.Spec)
			if (host == r.Host || shared) && location.Images == v.storage && location.Storage != "" {
				return true
			}
		}
		return false
	})
}

// isInUse reports whether a Template of the ProxmoxTemplate is still needed, so the object is not deleted yet.
func (r *hostReconciler) isInUse(usage Usage) bool {
	return slices.ContainsFunc(ListOwned(r.inventory.View(), r.kubeCluster, r.UID), func(e Existing) bool { return usage.InUse(e.Region, e.VMID) != "" })
}

// isBootDriveNeeded reports whether the builder VM of a boot drive exists, or may exist.
func (r *hostReconciler) isBootDriveNeeded(ctx context.Context, v ownVolume) (bool, error) {
	view := r.inventory.View()
	guest, exists := view.Guest(r.Region, v.vmid)
	if !exists || !view.Snapshots[r.Region].IsOnline(guest.Host) {
		return view.IsVMIDTaken(r.Region, v.vmid), nil // it is being created, or its configuration cannot be read
	}
	config, err := r.client.VMConfig(ctx, guest.Host, v.vmid)
	if err != nil && !errors.Is(err, proxmox.ErrNotFound) {
		return false, err
	}
	attached := slices.ContainsFunc(config.Drives().All(), func(d proxmox.Drive) bool { return d.VolumeID == v.volume })
	return attached || isBuilderOf(config, v.volume), nil
}
