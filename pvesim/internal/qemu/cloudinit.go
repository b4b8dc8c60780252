// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"strings"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/api"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/cloudinit"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/kernel"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/locks"
)

func (ci *cloudInit) getCloudInit(_ context.Context, r *api.Request) (api.Response, error) {
	ci.k.Mu.Lock()
	defer ci.k.Mu.Unlock()
	g := ci.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	rows := []api.Row{}
	for _, key := range strings.Fields("cicustom cipassword citype ciupgrade ciuser nameserver searchdomain sshkeys") {
		if v, ok := g.Config.Options[key]; ok {
			rows = append(rows, api.Row{"key": key, "value": ci.displayValue(key, v)})
		}
	}
	return api.Response{Data: rows}, nil
}

func (ci *cloudInit) putCloudInit(ctx context.Context, r *api.Request) (api.Response, error) {
	release, err := ci.k.LockGuest(ctx, nil, r.Host, r.VMID, locks.Exclusive, 10*time.Second)
	if err != nil {
		return api.Response{}, api.Failf("%v", err)
	}
	defer release()
	ci.k.Mu.Lock()
	defer ci.k.Mu.Unlock()
	g := ci.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	if lock := g.Config.Lock(); lock != "" {
		return api.Response{}, api.Failf("VM is locked (%s)", lock)
	}
	return api.Response{}, cloudinit.CheckSnippets(ci.store, g)
}

// getCloudInitDump returns generated files. Like Proxmox, it ignores custom snippets.
func (ci *cloudInit) getCloudInitDump(_ context.Context, r *api.Request) (api.Response, error) {
	ci.k.Mu.Lock()
	defer ci.k.Mu.Unlock()
	g := ci.k.FindVM(r.Host, r.VMID)
	if g == nil {
		return api.Response{}, kernel.MissingConfigError(r.Host, r.VMID)
	}
	user, network := cloudinit.UserData(g), cloudinit.NetworkConfig(g)
	files := map[string]string{"user": user, "network": network, "meta": cloudinit.MetaData(user, network)}
	return api.Response{Data: files[r.Params.Values["type"]]}, nil
}
