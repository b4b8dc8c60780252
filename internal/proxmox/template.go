// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"maps"
	"strconv"
)

// CreateVM starts the creation of a VM. Unlike a clone it takes the VMID before it
// answers, so that ErrExists comes at once; what else the options say, notes
// included, is written when the task ends.
func (c *client) CreateVM(ctx context.Context, req CreateRequest) (UPID, error) {
	body := parameters{}
	maps.Copy(body, req.Options)
	body["vmid"] = strconv.Itoa(req.VMID)
	if req.Pool != "" {
		body["pool"] = req.Pool
	}
	var upid UPID
	err := c.post(ctx, at("/nodes/{node}/qemu", req.Host), body, &upid)
	if upid, err = started(upid, err); err != nil {
		return "", fmt.Errorf("creating VM %d on host %s, %w", req.VMID, req.Host, err)
	}
	return upid, nil
}

// ConvertToTemplate turns a stopped VM into a template, for good.
func (c *client) ConvertToTemplate(ctx context.Context, host string, vmid int) (UPID, error) {
	var upid UPID
	err := c.post(ctx, at("/nodes/{node}/qemu/{vmid}/template", host, vmid), nil, &upid)
	if upid, err = started(upid, err); err != nil {
		return "", fmt.Errorf("converting VM %d on host %s to a template, %w", vmid, host, err)
	}
	return upid, nil
}

// DownloadImage lets a Host fetch a disk image. Proxmox writes to another name until
// the checksum was verified: an image that is there is complete.
func (c *client) DownloadImage(ctx context.Context, req DownloadRequest) (UPID, error) {
	body := parameters{"content": "import", "filename": req.Name, "url": req.URL}
	if req.Checksum != "" {
		body["checksum"], body["checksum-algorithm"] = req.Checksum, req.ChecksumType
	}
	var upid UPID
	err := c.post(ctx, at("/nodes/{node}/storage/{storage}/download-url", req.Host, req.Storage), body, &upid)
	if upid, err = started(upid, err); err != nil {
		return "", fmt.Errorf("downloading %s to storage %s on host %s, %w", req.URL, req.Storage, req.Host, err)
	}
	return upid, nil
}
