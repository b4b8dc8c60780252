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

// power presses one of the buttons of a VM.
func (a *API) power(ctx context.Context, guest Guest, verb string, params url.Values) error {
	return a.Run(ctx, http.MethodPost, fmt.Sprintf("/nodes/%s/qemu/%d/status/%s", guest.Host, guest.VMID, verb), params)
}

// Stop cuts a VM's power.
func (a *API) Stop(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "stop", nil)
}

// Reboot asks the guest to restart.
func (a *API) Reboot(ctx context.Context, guest Guest) error {
	return a.power(ctx, guest, "reboot", url.Values{"timeout": {"30"}})
}

// Destroy removes a VM, as somebody at the console would.
func (a *API) Destroy(ctx context.Context, guest Guest) error {
	if guest.Status == "running" {
		if err := a.Stop(ctx, guest); err != nil {
			return err
		}
	}
	return a.Run(ctx, http.MethodDelete, fmt.Sprintf("/nodes/%s/qemu/%d", guest.Host, guest.VMID), url.Values{"purge": {"1"}})
}
