// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// templateViolations returns everything that does not match the ProxmoxTemplate: a template too
// many or too few, or one that was not prepared, builder VMs, boot drives, volumes and tokens
// without it, and changed guests of other users.
func (e *Env) templateViolations(p *Process) (violations []string) {
	ctx, want := context.Background(), map[int]bool{}
	image := ""
	for _, t := range e.templates() {
		if !t.DeletionTimestamp.IsZero() {
			waiting := p.templates.recorder.Messages(v1alpha1.EventWaitingOnTemplateDeletion)
			return []string{fmt.Sprintf("template %s is still being deleted: %s%s", t.Name, strings.Join(waiting[max(0, len(waiting)-1):], ""), p.LastErrors(t.UID))}
		}
		if ok, message := isUpToDate(&t); !ok {
			return []string{fmt.Sprintf("template %s is not up to date: %s%s", t.Name, message, p.LastErrors(t.UID))}
		}
		hosts := map[string]bool{}
		for _, entry := range t.Status.Zones {
			zone, err := v1alpha1.ParseTemplateZone(entry)
			if err != nil {
				return []string{err.Error()}
			}
			want[zone.VMID], hosts[zone.Host] = true, true
		}
		count := len(e.Hosts)
		if e.builders.options.Shared {
			count = 1
		}
		if len(hosts) != len(e.Hosts) || len(want) != count {
			violations = append(violations, fmt.Sprintf("template %s is on %v, want %d templates for %v", t.Name, t.Status.Zones, count, e.Hosts))
		}
		image = t.Status.ImageID
	}
	volumes, found := e.preparedVolumes(want)
	violations = append(violations, found...)
	violations = append(violations, e.newVolumeViolations(ctx, image, volumes)...)
	return append(violations, e.tokenViolations(ctx)...)
}

// preparedVolumes compares the existing guests with the expected templates and returns the
// volumes of these.
func (e *Env) preparedVolumes(want map[int]bool) (volumes, violations []string) {
	others, violations := e.foreignViolations()
	for _, row := range others {
		config, err := e.admin.VMConfig(context.Background(), row.Host, row.VMID)
		mark, _ := ownership.Read(config.Description())
		e.builders.mu.Lock()
		prepared := e.builders.prepared[row.VMID]
		e.builders.mu.Unlock()
		switch {
		case !want[row.VMID]:
			violations = append(violations, fmt.Sprintf("VM %d (%s, %s, lock %q) on host %s leaked", row.VMID, row.Name, row.Status, row.Lock, row.Host))
		case err != nil:
			violations = append(violations, fmt.Sprintf("reading template %d: %v", row.VMID, err))
		case !config.IsTemplate() || mark.Builder != nil:
			violations = append(violations, fmt.Sprintf("VM %d on host %s is not a finished template", row.VMID, row.Host))
		case !prepared:
			violations = append(violations, fmt.Sprintf("template %d on host %s was not prepared", row.VMID, row.Host))
		}
		delete(want, row.VMID)
		for _, drive := range config.Drives().All() {
			volumes = append(volumes, drive.VolumeID)
		}
	}
	for vmid := range want {
		violations = append(violations, fmt.Sprintf("template %d is missing", vmid))
	}
	return volumes, violations
}

// newVolumeViolations returns leaked volumes: those that are neither the image nor a disk of a
// template.
func (e *Env) newVolumeViolations(ctx context.Context, image string, disks []string) (violations []string) {
	volumes, err := e.listVolumes(ctx)
	if err != nil {
		violations = append(violations, fmt.Sprintf("listing volumes: %v", err))
	}
	for at, volume := range volumes {
		isImage := image != "" && strings.HasSuffix(volume, ":import/"+image)
		if !e.builders.volumes[at] && !isImage && !slices.Contains(disks, volume) {
			violations = append(violations, fmt.Sprintf("volume %s leaked", at))
		}
	}
	return violations
}

// listVolumes returns all volumes by host and ID.
func (e *Env) listVolumes(ctx context.Context) (map[string]string, error) {
	resources, err := e.admin.Resources(ctx)
	volumes := map[string]string{}
	for _, row := range resources.Storages {
		var listed []proxmox.Volume
		if err == nil {
			listed, err = e.admin.Volumes(ctx, row.Host, row.Name, "")
		}
		for _, volume := range listed {
			volumes[row.Host+"/"+volume.ID] = volume.ID
		}
	}
	return volumes, err
}

// recordVolumes records the existing volumes as those of other users.
func (e *Env) recordVolumes() {
	e.t.Helper()
	volumes, err := e.listVolumes(e.t.Context())
	testenv.Must(e.t, err)
	e.builders.volumes = map[string]bool{}
	for at := range volumes {
		e.builders.volumes[at] = true
	}
}
