// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// lockDestroyed marks a configuration whose VM is being destroyed.
const lockDestroyed = "destroyed"

// outcome of one try at removing a VM.
type outcome int

const (
	// vmAbsent: our VM is not on that Host, or its VMID is somebody else's now.
	vmAbsent outcome = iota
	// vmRemoved: we destroyed it.
	vmRemoved
	// vmGoing: it is on its way out; look again.
	vmGoing
	// vmCloning: a clone still writes it.
	vmCloning
	// vmDestroying: a destroy has begun to take it apart.
	vmDestroying
)

// removeVM stops and destroys the VM, once it is known to be the one. Somebody
// else's VM is left alone. It tells what it read of the VM.
func (p *Provider) removeVM(ctx context.Context, c proxmox.Client, id Identity, host string) (proxmox.VMConfig, outcome, error) {
	cfg, err := c.VMConfig(ctx, host, id.VMID)
	if errors.Is(err, proxmox.ErrNotFound) {
		return cfg, vmAbsent, nil
	}
	if err != nil {
		return cfg, vmGoing, blockedBy(err, fmt.Sprintf("host %s does not answer; VM %d will be removed when it is back", host, id.VMID))
	}
	if state, err := mayRemove(ctx, id, host, cfg); state != vmRemoved || err != nil {
		return cfg, state, err
	}
	state, err := p.destroy(ctx, c, id, host, cfg)
	return cfg, state, err
}

// mayRemove answers vmRemoved where nothing speaks against the removal of a VM.
func mayRemove(ctx context.Context, id Identity, host string, cfg proxmox.VMConfig) (outcome, error) {
	switch lock := cfg.Lock(); lock {
	case "":
	case lockClone:
		return vmCloning, nil
	case lockDestroyed:
		return vmDestroying, nil
	default:
		return vmGoing, &BlockedError{Reason: BlockedLocked, Message: fmt.Sprintf("VM %d on host %s is locked (%s); it will be removed when the lock is gone", id.VMID, host, lock)}
	}
	if id.HasLostMark(cfg) {
		return vmGoing, &BlockedError{Reason: BlockedMarkLost, Message: fmt.Sprintf(
			"the notes of VM %d on host %s have lost our ownership mark, and what does not carry it is not destroyed; put this line back into the notes, or remove the VM by hand: %s", id.VMID, host, id.mark())}
	}
	if id.HasNewerMark(cfg) {
		return vmGoing, &BlockedError{Reason: BlockedNewerVersion, Message: fmt.Sprintf(
			"the ownership mark of VM %d on host %s cannot be read in full, and what is not understood is not destroyed: %s", id.VMID, host, ErrNewerVersion)}
	}
	if ours, why := id.Owns(cfg); !ours {
		log.FromContext(ctx).Info("left a VM alone that is not ours", "vmid", id.VMID, "host", host, "why", why)
		return vmAbsent, nil
	}
	if cfg.Protected() {
		return vmGoing, &BlockedError{Reason: BlockedProtected, Message: fmt.Sprintf("VM %d on host %s is protected; to let it go, run: qm set %d --protection 0", id.VMID, host, id.VMID)}
	}
	return vmRemoved, nil
}

func (p *Provider) destroy(ctx context.Context, c proxmox.Client, id Identity, host string, cfg proxmox.VMConfig) (outcome, error) {
	storage := ""
	if disk, ok := cfg.Drives().Boot(); ok {
		storage = disk.Storage
	}
	key := durationKey(id.Region, host, storage)
	if volumes := foreignVolumes(id, cfg); len(volumes) > 0 {
		log.FromContext(ctx).Info("volumes of other owners are attached; they stay", "vmid", id.VMID, "host", host, "volumes", volumes)
	}
	err := p.powerOff(ctx, c, id, host, key)
	if errors.Is(err, proxmox.ErrNotFound) {
		return vmAbsent, nil
	}
	if err != nil {
		return vmGoing, blockedBy(err, fmt.Sprintf("host %s does not answer", host))
	}
	done, err := p.slots.acquire(ctx, slotOf(p.Inventory.View(), kindDestroy, id.Region, host, storage))
	if err != nil {
		return vmGoing, err
	}
	defer done()
	task, err := c.DestroyVM(ctx, host, id.VMID)
	var status proxmox.TaskStatus
	if err == nil {
		status, err = p.wait(ctx, c, task, key)
	}
	if errors.Is(err, proxmox.ErrRunning) {
		// Somebody started it in between: the next call stops it again.
		return vmGoing, nil
	}
	if errors.Is(err, proxmox.ErrNotFound) {
		return vmAbsent, nil
	}
	if err != nil {
		return vmGoing, blockedBy(err, fmt.Sprintf("host %s does not answer", host))
	}
	if strings.HasPrefix(status.Exit, "WARNINGS") {
		p.freeLeft(ctx, c, id, host, cfg, task)
	}
	log.FromContext(ctx).Info("removed a VM", "region", id.Region, "host", host, "vmid", id.VMID)
	p.Inventory.Ledger().ObserveDeleted(id.Region, id.VMID)
	return vmRemoved, nil
}

// freeTries is how often a disk that was left behind is freed.
const freeTries = 5

// freeLeft frees the VM's own disks that Proxmox left behind, with a warning: it does
// so where the storage's lock was held for too long. The configuration is gone, so that
// nobody would find them again. Only disks that the warning names are touched: another
// VM may have the VMID by now, but not that disk.
func (p *Provider) freeLeft(ctx context.Context, c proxmox.Client, id Identity, host string, cfg proxmox.VMConfig, task proxmox.UPID) {
	log := log.FromContext(ctx).WithValues("vmid", id.VMID, "host", host)
	lines, err := c.TaskLog(ctx, task)
	log.Info("the VM is gone, but Proxmox warned", "log", strings.Join(lines, " | "), "reading", err)
	for _, drive := range cfg.Drives().All() {
		named := slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, "'"+drive.VolumeID+"'") })
		if !named || owner(drive) != strconv.Itoa(id.VMID) {
			continue
		}
		for range freeTries {
			if err = p.deleteVolume(ctx, c, host, drive.VolumeID); !isTransient(err) {
				break
			}
			select {
			case <-p.Clock.After(time.Second):
			case <-ctx.Done():
			}
		}
		if err != nil {
			log.Error(err, "a disk of a VM that is gone is left; run on that host as root: pvesm free "+drive.VolumeID)
		}
	}
}

// powerOff ends the guest: at once, or with a bounded time to shut down. A
// shutdown that outlasts one Delete is waited for by the next.
func (p *Provider) powerOff(ctx context.Context, c proxmox.Client, id Identity, host, key string) error {
	task, under := p.memory.shutdown(id.ClaimUID)
	if !under {
		var err error
		if p.Settings.ShutdownTimeout > 0 {
			task, err = c.ShutdownVM(ctx, host, id.VMID, p.Settings.ShutdownTimeout)
			p.memory.setShutdown(id.ClaimUID, task)
		} else {
			task, err = c.StopVM(ctx, host, id.VMID)
		}
		if err != nil {
			return err
		}
	}
	_, err := p.wait(ctx, c, task, key)
	if ctx.Err() == nil {
		p.memory.setShutdown(id.ClaimUID, "")
	}
	return err
}

// foreignVolumes are attached disks that carry another VMID, as those of the
// Proxmox CSI driver do. Proxmox leaves them alone when it destroys the VM.
func foreignVolumes(id Identity, cfg proxmox.VMConfig) []string {
	var out []string
	for _, drive := range cfg.Drives().All() {
		if vmid := owner(drive); vmid != "" && vmid != strconv.Itoa(id.VMID) {
			out = append(out, drive.VolumeID)
		}
	}
	return out
}

// owner is the VMID that a disk carries; empty for what carries none.
func owner(drive proxmox.Drive) string {
	if found := volumePattern.FindStringSubmatch(drive.VolumeID); found != nil {
		return found[1]
	}
	return ""
}
