// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// Tasks lists the latest tasks of the cluster, for messages.
func (a *API) Tasks(ctx context.Context) string {
	var rows []struct {
		UPID, Status       string
		Starttime, Endtime int64
	}
	if err := a.Call(ctx, http.MethodGet, "/cluster/tasks", nil, &rows); err != nil {
		return err.Error()
	}
	var out strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&out, "%s %s\n", row.UPID, row.Status)
	}
	return out.String()
}

// power runs a power command of a VM, such as stop or reboot.
func (a *API) power(ctx context.Context, guest Guest, verb string, params url.Values) error {
	return a.Run(ctx, http.MethodPost, fmt.Sprintf("/nodes/%s/qemu/%d/status/%s", guest.Host, guest.VMID, verb), params)
}

// Stop stops a VM without shutting it down.
func (a *API) Stop(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "stop", nil)
}

// Start starts a guest.
func (a *API) Start(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "start", nil)
}

// Reset restarts a VM without shutting it down.
func (a *API) Reset(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "reset", nil)
}

// Reboot asks the guest to restart.
func (a *API) Reboot(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "reboot", url.Values{"timeout": {"600"}})
}

// Destroy stops and destroys a VM with purge, without checking who owns it.
func (a *API) Destroy(ctx context.Context, guest Guest) error {
	for {
		if guest.Status == "running" {
			if err := a.Stop(ctx, guest); err != nil {
				return err
			}
		}
		err := a.Run(ctx, http.MethodDelete, fmt.Sprintf("/nodes/%s/qemu/%d", guest.Host, guest.VMID), url.Values{"purge": {"1"}})
		if err == nil || !strings.Contains(err.Error(), "is running") {
			return err
		}
		guest.Status = "running" // the controller has started it again
	}
}
