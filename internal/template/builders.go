// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// statusRunning is the status of a running VM in the inventory.
const statusRunning = "running"

// tryAcquireBuilder reports whether a builder VM may be created on the Host, or the given one
// started: fewer than the limit exist or run on other Hosts, according to the inventory or to
// this process.
func (r *hostReconciler) tryAcquireBuilder(vmid int) bool {
	// Those that wait to be started do not count for each other.
	busy, view := r.hostsWithBuilders(vmid != 0), r.inventory.View()
	r.tracker.mu.Lock()
	defer r.tracker.mu.Unlock()
	maps.DeleteFunc(busy, func(key HostKey, _ bool) bool {
		s := r.tracker.hosts[key] // one that cannot start its builder VM does not block the others
		return vmid == 0 && s != nil && s.failures > 0
	})
	for key, other := range r.tracker.builders {
		switch {
		case key.UID != r.UID, !view.Snapshots[key.Region].IsOnline(key.Host):
		case other != 0 && r.inventory.HasCurrentConfig(key.Region, other):
			delete(r.tracker.builders, key) // the inventory shows whether it was started
		case other != 0 || vmid == 0:
			busy[key] = true
		}
	}
	delete(busy, r.HostKey)
	if len(busy) >= r.desired.Spec.Prepare.HostLimit() {
		return false
	}
	r.tracker.builders[r.HostKey] = vmid
	return true
}

// waitForOthers reports that the Host waits for builder VMs on others, and returns for how long.
func (r *hostReconciler) waitForOthers() time.Duration {
	r.tracker.setStep(r.HostKey, fmt.Sprintf("waiting for builder VMs on other hosts: spec.prepare.maxConcurrent is %d", r.desired.Spec.Prepare.HostLimit()))
	return builderInterval
}

// hostsWithBuilders returns the online Hosts with a builder VM of the ProxmoxTemplate that has
// not failed, according to the inventory; with started, only those that were started. If only
// one may run, those that failed count until they are stopped.
func (r *hostReconciler) hostsWithBuilders(started bool) map[HostKey]bool {
	busy := map[HostKey]bool{}
	for region, snapshot := range r.inventory.View().Snapshots {
		for _, guest := range snapshot.Guests {
			if guest.Config == nil || guest.Template || !snapshot.IsOnline(guest.Host) {
				continue
			}
			mark, owned := readOwnedMark(r.kubeCluster, r.UID, guest.VMID, *guest.Config)
			if !owned || mark.Builder == nil {
				continue
			}
			if started && mark.Builder.Started.IsZero() && guest.Status != statusRunning {
				continue
			}
			if mark.Builder.Failed.IsZero() || r.desired.Spec.Prepare.HostLimit() == 1 && guest.Status == statusRunning {
				busy[HostKey{UID: r.UID, Region: region, Host: guest.Host}] = true
			}
		}
	}
	return busy
}

// releaseBuilder removes the builder VM of a Host from those that count. It returns the VMID of the one that
// this process started, or 0.
func (t *tracker) releaseBuilder(key HostKey) (vmid int) {
	t.update(key, func(s *hostState) { vmid, s.builder = s.builder, 0 })
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.builders, key)
	return vmid
}

// recordBuilderFailure records why a preparation failed and when it is retried: earlier if the
// builder VM, which exists, is deleted by another user.
func (t *tracker) recordBuilderFailure(key HostKey, vmid int, text string, attempt int, retryAt time.Time) {
	t.releaseBuilder(key)
	t.update(key, func(s *hostState) {
		s.failure, s.failures, s.attempts, s.retryAt, s.step, s.builder = text, 1, attempt, retryAt, "", vmid
	})
}

// reportMissingBuilder reports that a builder VM was destroyed by another user.
func (r *hostReconciler) reportMissingBuilder() {
	if vmid := r.tracker.releaseBuilder(r.HostKey); vmid != 0 {
		r.publish(corev1.EventTypeWarning, v1alpha1.EventTemplatePreparationFailed, fmt.Sprintf(
			"%s: builder VM %d no longer exists and is recreated", r.displayName(r.Region, r.Host), vmid))
	}
}

// newBuilder returns the progress of a new builder VM.
func (r *hostReconciler) newBuilder(location Location, vmid int) *ownership.Builder {
	return &ownership.Builder{
		BootDrive: location.BootDrives + ":iso/" + bootDriveName(r.kubeCluster, vmid), Attempt: r.tracker.get(r.HostKey).attempts + 1,
		Settings: r.builderSettings(),
	}
}

// builderSettings returns the settings of a builder VM that the hash of its generation does
// not cover.
func (r *hostReconciler) builderSettings() string {
	p := r.desired.Spec.Prepare
	return fmt.Sprintf("%s/%d/%d/%s/%s/%s", r.desired.Settings, p.CPUs(), p.MemoryMiB(), p.DiskSize, p.TimeLimit(), p.Storage)
}

// isOutdated reports whether a builder VM was created with other settings, for example with
// those that made it fail.
func (r *hostReconciler) isOutdated(b ownership.Builder) bool {
	return b.Settings != "" && b.Settings != r.builderSettings()
}

// findBuilder returns the builder VM for the desired Template, if there is one.
func (o observation) findBuilder(desired Desired) (Existing, bool) {
	for _, existing := range o.unfinished {
		if o.location.matches(desired, existing) && existing.Mark.Builder != nil {
			return existing, true
		}
	}
	return Existing{}, false
}

func isBuilderOf(config proxmox.VMConfig, bootDrive string) bool {
	mark, ok := ownership.Read(config.Description())
	return ok && mark.Builder != nil && mark.Builder.BootDrive == bootDrive
}

// setBuilderOptions changes the options of a new VM to those of a builder VM. It has its
// own boot drive instead of a cloud-init drive, does not start with its Host, and leaves
// the Host's devices to Nodes. finishTemplate adds them to the Template.
func setBuilderOptions(options map[string]string, prepare *v1alpha1.Preparation) {
	for option := range options {
		if option == cloudInitSlot || option == "onboot" || strings.HasPrefix(option, "hostpci") {
			delete(options, option)
		}
	}
	options["cores"], options["memory"] = strconv.Itoa(prepare.CPUs()), strconv.Itoa(prepare.MemoryMiB())
}

// RefreshDue reports whether the Templates of the desired generation have reached the age
// at which they are rebuilt, and otherwise when the oldest one will; zero if never.
func (p *Provider) RefreshDue(desired Desired) (due bool, after time.Duration) {
	if desired.Spec.Prepare == nil || desired.Spec.Prepare.RefreshAfter == nil {
		return false, 0
	}
	r := p.rollout(desired)
	if p.isBuilding(r) {
		return false, 0 // otherwise a rollout that takes longer than this never ends
	}
	oldest := 0
	for _, e := range r.Existing {
		if created := CreationTime(e.Config); e.Mark.Hash == desired.Hash && created > 0 && (oldest == 0 || created < oldest) {
			oldest = created
		}
	}
	if oldest == 0 {
		return false, 0
	}
	since := time.Unix(int64(oldest), 0)
	if desired.RefreshedAt.After(since) {
		since = desired.RefreshedAt // the clock of the Host is behind
	}
	after = since.Add(desired.Spec.Prepare.RefreshAfter.Duration).Sub(p.clock.Now())
	return after <= 0, max(after, 0)
}

// isBuilding reports whether the Template of the desired generation is in progress on a Host.
func (p *Provider) isBuilding(r Rollout) bool {
	return slices.ContainsFunc(r.Locations, func(l Location) bool {
		s := p.tracker.get(HostKey{UID: r.Desired.UID, Region: l.Region, Host: l.Host})
		return !r.isReady(l) && l.Blocker() == "" && (s.failure == "" || s.hash != r.Desired.Hash)
	})
}
