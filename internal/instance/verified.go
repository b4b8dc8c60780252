// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vm"
)

// VerifyVM reads the VM of a Claim. Each reading must pass the check, if there is one, and be that of the VM with
// the identity. It returns the error of the read or of the check, with what was read.
func VerifyVM(ctx context.Context, client proxmox.Client, id Identity, host string, check func(proxmox.VMConfig) error) (*vm.Verified, error) {
	return vm.Verify(ctx, client, host, id.VMID, func(cfg proxmox.VMConfig) error {
		if check != nil {
			if err := check(cfg); err != nil {
				return err
			}
		}
		if owns, why := id.Owns(cfg); !owns || cfg.IsTemplate() {
			return fmt.Errorf("VM %d on host %s is not the VM that was verified: %s", id.VMID, host, why)
		}
		return nil
	})
}
