// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"strconv"
)

// MoveToPool changes a VM's pool. A VM is in one pool at most.
func (c *client) MoveToPool(ctx context.Context, vmid int, from, pool string) error {
	body := parameters{"poolid": pool, "vms": strconv.Itoa(vmid), "allow-move": "1"}
	if pool == "" {
		body = parameters{"poolid": from, "vms": strconv.Itoa(vmid), "delete": "1"}
	}
	if err := c.put(ctx, at("/pools"), body, nil); err != nil {
		return fmt.Errorf("moving VM %d from pool %q to %q, %w", vmid, from, pool, err)
	}
	return nil
}
