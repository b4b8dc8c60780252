// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// VMClient creates, changes and deletes VMs and templates.
type VMClient interface {
	// CloneVM starts the clone of a template. Proxmox accepts two clones to one VMID;
	// the second task fails.
	CloneVM(ctx context.Context, req CloneRequest) (UPID, error)
	// CreateVM starts the creation of a VM. Unlike a clone it reserves the VMID before
	// it returns, and returns ErrExists if the VMID is taken. All other options,
	// including the notes, are written when the task ends.
	CreateVM(ctx context.Context, req CreateRequest) (UPID, error)
	// UpdateVM writes configuration synchronously: all of it or nothing. It makes no
	// call for an empty change, which Proxmox would refuse.
	UpdateVM(ctx context.Context, host string, vmid int, change ConfigChange) error
	// ResizeDisk grows a disk to an absolute size, rounded up to a MiB.
	ResizeDisk(ctx context.Context, host string, vmid int, disk string, bytes int64) (UPID, error)
	// StartVM starts the VM. For a VM managed by HA the task only notifies the HA manager.
	StartVM(ctx context.Context, host string, vmid int) (UPID, error)
	// StopVM powers the VM off. It aborts a shutdown in progress.
	StopVM(ctx context.Context, host string, vmid int) (UPID, error)
	// ShutdownVM requests the guest to power off, and powers it off after the
	// timeout. The task runs until the guest is off.
	ShutdownVM(ctx context.Context, host string, vmid int, timeout time.Duration) (UPID, error)
	// ResetVM resets the VM without the guest's cooperation.
	ResetVM(ctx context.Context, host string, vmid int) (UPID, error)
	// ConvertToTemplate converts a stopped VM to a template. It cannot be undone.
	ConvertToTemplate(ctx context.Context, host string, vmid int) (UPID, error)
	// DestroyVM deletes a stopped VM with the volumes that it references, and
	// purges it from HA, replication and backup jobs.
	DestroyVM(ctx context.Context, host string, vmid int) (UPID, error)
	// MoveToPool moves a VM from one resource pool to another. An empty pool removes
	// it from the first. It returns no error if the VM already is where it is moved to.
	MoveToPool(ctx context.Context, vmid int, from, pool string) error
}

type vmClient struct{ *caller }

// CloneRequest are the parameters of a clone.
type CloneRequest struct {
	Host        string // of the template
	TemplateID  int
	VMID        int
	Name        string
	Description string
	// Full copies the disks; otherwise the clone is linked to the template.
	Full bool
	// Storage for the copied disks, only with Full. Empty = the template's storage.
	Storage string
	// Target Host, if it differs from Host (shared storage only).
	Target string
	Pool   string
}

func (c vmClient) CloneVM(ctx context.Context, req CloneRequest) (UPID, error) {
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
	return c.startTask(ctx, newRequest(http.MethodPost, at("/nodes/{node}/qemu/{vmid}/clone", req.Host, req.TemplateID), body),
		"cloning template %d on host %s to VM %d", req.TemplateID, req.Host, req.VMID)
}

// CreateRequest are the parameters of a new VM.
type CreateRequest struct {
	Host string
	VMID int
	Pool string
	// Options of the configuration. "storage:0,import-from=volume" creates a disk from
	// an image.
	Options map[string]string
}

func (c vmClient) CreateVM(ctx context.Context, req CreateRequest) (UPID, error) {
	body := parameters{}
	maps.Copy(body, req.Options)
	body["vmid"] = strconv.Itoa(req.VMID)
	if req.Pool != "" {
		body["pool"] = req.Pool
	}
	return c.startTask(ctx, newRequest(http.MethodPost, at("/nodes/{node}/qemu", req.Host), body), "creating VM %d on host %s", req.VMID, req.Host)
}

// ConfigChange is one configuration write: options to set and options to remove.
type ConfigChange struct {
	Set    map[string]string
	Delete []string
	// Digest, if set, makes the write fail with ErrConflict if the configuration has
	// changed since.
	Digest string
}

func (c vmClient) UpdateVM(ctx context.Context, host string, vmid int, change ConfigChange) error {
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
	if err := c.put(ctx, at("/nodes/{node}/qemu/{vmid}/config", host, vmid), body); err != nil {
		return fmt.Errorf("configuring VM %d on host %s: %w", vmid, host, err)
	}
	return nil
}

const mebibyte = 1 << 20

func (c vmClient) ResizeDisk(ctx context.Context, host string, vmid int, disk string, bytes int64) (UPID, error) {
	size := strconv.FormatInt((bytes+mebibyte-1)/mebibyte, 10) + "M"
	return c.startTask(ctx, newRequest(http.MethodPut, at("/nodes/{node}/qemu/{vmid}/resize", host, vmid), parameters{"disk": disk, "size": size}),
		"resizing %s of VM %d on host %s to %s", disk, vmid, host, size)
}

func (c vmClient) StartVM(ctx context.Context, host string, vmid int) (UPID, error) {
	return c.power(ctx, "starting", at("/nodes/{node}/qemu/{vmid}/status/start", host, vmid), nil, host, vmid)
}

// StopVM sets overrule-shutdown: a shutdown in progress holds the VM's lock until its
// timeout, and without it the stop would fail after 10 s.
func (c vmClient) StopVM(ctx context.Context, host string, vmid int) (UPID, error) {
	body := parameters{"overrule-shutdown": "1"}
	return c.power(ctx, "stopping", at("/nodes/{node}/qemu/{vmid}/status/stop", host, vmid), body, host, vmid)
}

func (c vmClient) ShutdownVM(ctx context.Context, host string, vmid int, timeout time.Duration) (UPID, error) {
	body := parameters{"forceStop": "1", "timeout": strconv.Itoa(int(timeout.Seconds()))}
	return c.power(ctx, "shutting down", at("/nodes/{node}/qemu/{vmid}/status/shutdown", host, vmid), body, host, vmid)
}

func (c vmClient) ResetVM(ctx context.Context, host string, vmid int) (UPID, error) {
	return c.power(ctx, "resetting", at("/nodes/{node}/qemu/{vmid}/status/reset", host, vmid), nil, host, vmid)
}

func (c vmClient) power(ctx context.Context, verb string, e endpoint, body parameters, host string, vmid int) (UPID, error) {
	return c.startTask(ctx, newRequest(http.MethodPost, e, body), "%s VM %d on host %s", verb, vmid, host)
}

func (c vmClient) ConvertToTemplate(ctx context.Context, host string, vmid int) (UPID, error) {
	return c.startTask(ctx, newRequest(http.MethodPost, at("/nodes/{node}/qemu/{vmid}/template", host, vmid), nil),
		"converting VM %d on host %s to a template", vmid, host)
}

// DestroyVM disables destroy-unreferenced-disks: volumes of other owners can have
// the same VMID in their name, and Proxmox would scan every storage.
func (c vmClient) DestroyVM(ctx context.Context, host string, vmid int) (UPID, error) {
	e := at("/nodes/{node}/qemu/{vmid}", host, vmid).with("purge", "1").with("destroy-unreferenced-disks", "0")
	return c.startTask(ctx, newRequest(http.MethodDelete, e, nil), "destroying VM %d on host %s", vmid, host)
}

func (c vmClient) MoveToPool(ctx context.Context, vmid int, from, pool string) error {
	body := parameters{"poolid": pool, "vms": strconv.Itoa(vmid), "allow-move": "1"}
	if pool == "" {
		body = parameters{"poolid": from, "vms": strconv.Itoa(vmid), "delete": "1"}
	}
	err := c.put(ctx, at("/pools"), body)
	switch {
	case pool == "" && errors.Is(err, ErrNotFound), pool != "" && errors.Is(err, ErrExists):
		return nil // an earlier request or another user did it
	case err != nil:
		return fmt.Errorf("moving VM %d from pool %q to %q: %w", vmid, from, pool, err)
	}
	return nil
}
