// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/qm"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/tasks"
)

// postTemplate converts a VM to a template.
func (tm *templates) postTemplate(_ context.Context, r *api.Request) (api.Response, error) {
	if _, err := tm.checkTemplate(r); err != nil {
		return api.Response{}, err
	}
	t := tm.k.Fork(r, "qmtemplate", strconv.Itoa(r.VMID), func(ctx context.Context, t *tasks.Task) error {
		release, err := tm.k.LockGuest(ctx, t, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
		if err != nil {
			return err
		}
		defer release()
		g, err := tm.checkTemplate(r)
		if err != nil {
			return err
		}
		tm.k.Mu.Lock()
		defer tm.k.Mu.Unlock()
		return tm.convertToTemplate(g)
	})
	return kernel.TaskResponse(t), nil
}

func (tm *templates) checkTemplate(r *api.Request) (*kernel.Guest, error) {
	tm.k.Mu.Lock()
	defer tm.k.Mu.Unlock()
	g := tm.k.FindVM(r.Host, r.VMID)
	switch {
	case g == nil:
		return nil, kernel.MissingConfigError(r.Host, r.VMID)
	case g.Config.Lock() != "":
		return nil, api.Failf("VM is locked (%s)", g.Config.Lock())
	case len(g.Config.Snapshots) > 0:
		return nil, api.Failf("unable to create template, because VM contains snapshots")
	case g.Config.IsTemplate() && r.Params.Values["disk"] == "":
		return nil, api.Failf("you can't convert a template to a template")
	case g.IsRunning():
		return nil, api.Failf("you can't convert a VM to template if VM is running")
	}
	return g, nil
}

func (tm *templates) convertToTemplate(g *kernel.Guest) error {
	for _, key := range qm.DriveKeys(g.Config.Options) {
		d, ok := qm.ParseDrive(key, g.Config.Options[key])
		if !ok || d.IsCDROM() || !d.HasVolume() {
			continue
		}
		s, v := tm.store.Storage(d.Storage()), tm.store.Volume(g.Host, d.File)
		if v == nil || strings.HasPrefix(path.Base(v.Name), "base-") {
			continue
		}
		if !s.Kind().Template {
			return api.Failf("volume '%s' does not support template/clone", d.File)
		}
		tm.store.RemoveVolume(g.Host, d.File)
		v.Name = path.Join(path.Dir(v.Name), strings.Replace(path.Base(v.Name), "vm-", "base-", 1))
		tm.store.PutVolume(v)
		d.File = s.VolumeID(v)
		g.Config.Options[key] = d.String()
	}
	g.Config.Options["template"] = "1"
	return nil
}
