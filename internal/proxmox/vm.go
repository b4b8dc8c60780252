// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// VMConfig reads the configuration in force on that Host: without current=1
// Proxmox shows a running VM with changes that wait for its next start.
func (c *client) VMConfig(ctx context.Context, host string, vmid int) (VMConfig, error) {
	var config VMConfig
	e := at("/nodes/{node}/qemu/{vmid}/config", host, vmid).with("current", "1")
	err := c.get(ctx, e, &config)
	if _, forbidden := errors.AsType[*ForbiddenError](err); forbidden {
		err = c.proveAbsent(ctx, vmid, err)
	}
	if err != nil {
		return VMConfig{}, fmt.Errorf("reading the config of VM %d on host %s, %w", vmid, host, err)
	}
	return config, nil
}

// proveAbsent tells a VM that does not exist from one that the caller may not see.
// A token whose rights come from a pool has none on a VMID that nobody has, so
// Proxmox forbids where it would else say "does not exist"; whether a VMID is free
// in the Cluster it tells everybody.
func (c *client) proveAbsent(ctx context.Context, vmid int, forbidden error) error {
	err := c.get(ctx, at("/cluster/nextid").with("vmid", strconv.Itoa(vmid)), nil)
	switch {
	case err == nil:
		return &failure{kind: ErrNotFound, text: fmt.Sprintf("VMID %d is free in the whole cluster", vmid)}
	case errors.Is(err, ErrExists):
		return forbidden
	}
	return err
}

// VMStatus reads the live power state.
func (c *client) VMStatus(ctx context.Context, host string, vmid int) (VMStatus, error) {
	var out struct {
		Status string
		Lock   string
		Uptime numeric
		Agent  numeric
		HA     struct{ Managed numeric }
	}
	if err := c.get(ctx, at("/nodes/{node}/qemu/{vmid}/status/current", host, vmid), &out); err != nil {
		return VMStatus{}, fmt.Errorf("reading the status of VM %d on host %s, %w", vmid, host, err)
	}
	return VMStatus{
		Running:       out.Status == "running",
		Status:        out.Status,
		Lock:          out.Lock,
		UptimeSeconds: out.Uptime.whole(),
		HAManaged:     out.HA.Managed.isSet(),
		AgentEnabled:  out.Agent.isSet(),
	}, nil
}

// CloneVM starts the clone of a template.
func (c *client) CloneVM(ctx context.Context, req CloneRequest) (UPID, error) {
	body := parameters{"newid": strconv.Itoa(req.VMID), "full": "0"}
	if req.Full {
		body["full"] = "1"
	}
	optional := map[string]string{
		"name": req.Name, "description": req.Description, "storage": req.Storage, "pool": req.Pool,
	}
	if req.Target != req.Host {
		optional["target"] = req.Target
	}
	for key, value := range optional {
		if value != "" {
			body[key] = value
		}
	}
	var upid UPID
	err := c.post(ctx, at("/nodes/{node}/qemu/{vmid}/clone", req.Host, req.TemplateID), body, &upid)
	if upid, err = started(upid, err); err != nil {
		return "", fmt.Errorf("cloning template %d on host %s to VM %d, %w", req.TemplateID, req.Host, req.VMID, err)
	}
	return upid, nil
}

// UpdateVM writes configuration synchronously: all of it or nothing. A change
// of nothing is no call: Proxmox would refuse it.
func (c *client) UpdateVM(ctx context.Context, host string, vmid int, change ConfigChange) error {
	if len(change.Set) == 0 && len(change.Delete) == 0 {
		return nil
	}
	body := parameters{}
	maps.Copy(body, change.Set)
	if len(change.Delete) > 0 {
		body["delete"] = strings.Join(slices.Sorted(slices.Values(change.Delete)), ",")
	}
	if change.Digest != "" {
		body["digest"] = change.Digest
	}
	if err := c.put(ctx, at("/nodes/{node}/qemu/{vmid}/config", host, vmid), body, nil); err != nil {
		return fmt.Errorf("configuring VM %d on host %s, %w", vmid, host, err)
	}
	return nil
}

const mebibyte = 1 << 20

// ResizeDisk grows a disk to an absolute size, rounded up to a MiB.
func (c *client) ResizeDisk(ctx context.Context, host string, vmid int, disk string, bytes int64) (UPID, error) {
	size := strconv.FormatInt((bytes+mebibyte-1)/mebibyte, 10) + "M"
	var upid UPID
	err := c.put(ctx, at("/nodes/{node}/qemu/{vmid}/resize", host, vmid), parameters{"disk": disk, "size": size}, &upid)
	if upid, err = started(upid, err); err != nil {
		return "", fmt.Errorf("resizing %s of VM %d on host %s to %s, %w", disk, vmid, host, size, err)
	}
	return upid, nil
}

// StartVM powers the VM on. For a VM under HA the task only asks the HA manager.
func (c *client) StartVM(ctx context.Context, host string, vmid int) (UPID, error) {
	return c.power(ctx, "starting", at("/nodes/{node}/qemu/{vmid}/status/start", host, vmid), nil, host, vmid)
}

// StopVM cuts the power. A shutdown under way holds the VM's lock for its whole
// wait, so without overrule-shutdown the stop would fail after 10 s.
func (c *client) StopVM(ctx context.Context, host string, vmid int) (UPID, error) {
	body := parameters{"overrule-shutdown": "1"}
	return c.power(ctx, "stopping", at("/nodes/{node}/qemu/{vmid}/status/stop", host, vmid), body, host, vmid)
}

// ShutdownVM asks the guest to power off, and cuts the power after the timeout.
func (c *client) ShutdownVM(ctx context.Context, host string, vmid int, timeout time.Duration) (UPID, error) {
	body := parameters{"forceStop": "1", "timeout": strconv.Itoa(int(timeout.Seconds()))}
	return c.power(ctx, "shutting down", at("/nodes/{node}/qemu/{vmid}/status/shutdown", host, vmid), body, host, vmid)
}

// RebootVM asks the guest to restart.
func (c *client) RebootVM(ctx context.Context, host string, vmid int) (UPID, error) {
	return c.power(ctx, "rebooting", at("/nodes/{node}/qemu/{vmid}/status/reboot", host, vmid), nil, host, vmid)
}

// ResetVM presses the reset button.
func (c *client) ResetVM(ctx context.Context, host string, vmid int) (UPID, error) {
	return c.power(ctx, "resetting", at("/nodes/{node}/qemu/{vmid}/status/reset", host, vmid), nil, host, vmid)
}

func (c *client) power(ctx context.Context, verbing string, e endpoint, body parameters, host string, vmid int) (UPID, error) {
	var upid UPID
	err := c.post(ctx, e, body, &upid)
	if upid, err = started(upid, err); err != nil {
		return "", fmt.Errorf("%s VM %d on host %s, %w", verbing, vmid, host, err)
	}
	return upid, nil
}

// DestroyVM removes a stopped VM. destroy-unreferenced-disks stays off: other
// owners' volumes can carry our VMID, and the scan touches every storage.
func (c *client) DestroyVM(ctx context.Context, host string, vmid int) (UPID, error) {
	e := at("/nodes/{node}/qemu/{vmid}", host, vmid).with("purge", "1").with("destroy-unreferenced-disks", "0")
	var upid UPID
	err := c.delete(ctx, e, &upid)
	if upid, err = started(upid, err); err != nil {
		return "", fmt.Errorf("destroying VM %d on host %s, %w", vmid, host, err)
	}
	return upid, nil
}
