// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// MoveToPool changes a VM's pool. A VM is in one pool at most.
func (c *client) MoveToPool(ctx context.Context, vmid int, from, pool string) error {
	body := parameters{"poolid": pool, "vms": strconv.Itoa(vmid), "allow-move": "1"}
	if pool == "" {
		body = parameters{"poolid": from, "vms": strconv.Itoa(vmid), "delete": "1"}
	}
	err := c.put(ctx, at("/pools"), body, nil)
	if pool == "" && errors.Is(err, ErrNotFound) {
		return nil // it was in none
	}
	if err != nil {
		return fmt.Errorf("moving VM %d from pool %q to %q, %w", vmid, from, pool, err)
	}
	return nil
}

// PoolExists tells whether there is a resource pool of that name. Lists of pools
// leave out what the caller may not audit; asked for one by name, Proxmox answers
// anybody.
func (c *client) PoolExists(ctx context.Context, pool string) (bool, error) {
	var rows []struct{ PoolID string }
	err := c.get(ctx, at("/pools").with("poolid", pool), &rows)
	switch {
	case errors.Is(err, ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading pool %q, %w", pool, err)
	}
	return true, nil
}
