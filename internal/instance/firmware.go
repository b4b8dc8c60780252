// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ignitionOf is what is handed to the firmware interface. Ignition is all that is read
// from there.
func ignitionOf(files bootdata.Files) ([]byte, error) {
	if format := bootdata.FormatOf(files.UserData); format != bootdata.FormatIgnition {
		return nil, &LaunchError{Reason: ReasonBootData, err: fmt.Errorf(
			"user-data is %s, but spec.metadataOptions.type fwcfg is for Ignition: write it in Butane or Ignition, or set type to cdrom", format)}
	}
	return files.UserData, nil
}

// ensureFirmware names the uploaded Ignition in the VM's arguments, which only root
// may, before the start.
func (l *launch) ensureFirmware(ctx context.Context) error {
	if !l.intent.Firmware {
		return nil
	}
	root, err := l.root(l.intent.Region)
	if err != nil {
		return &LaunchError{Reason: ReasonPermission, err: fmt.Errorf("handing Ignition to VM %d on host %s, %w", l.intent.VMID, l.intent.Host, err)}
	}
	path, err := l.client.VolumePath(ctx, l.intent.Host, isoVolume(l.intent.ISOStorage, l.id))
	if err != nil {
		return err
	}
	cfg, err := l.client.VMConfig(ctx, l.intent.Host, l.intent.VMID)
	if err != nil || proxmox.HasIgnitionFile(cfg, path) {
		return err
	}
	if err := l.refuse(cfg); err != nil {
		return err
	}
	if err := root.SetIgnitionFile(ctx, l.intent.Host, l.intent.VMID, cfg, path); err != nil {
		return fmt.Errorf("handing Ignition to VM %d on host %s as root, %w", l.intent.VMID, l.intent.Host, err)
	}
	return nil
}

// takeFirmwareBack takes the file out of the VM's arguments. On a VM that runs that
// waits for the next start, which is when the file would be missed.
func (p *Provider) takeFirmwareBack(ctx context.Context, in Intent, host string, cfg proxmox.VMConfig) error {
	root, err := p.root(in.Region)
	if err == nil {
		err = root.SetIgnitionFile(ctx, host, in.VMID, cfg, "")
	}
	if err != nil {
		return fmt.Errorf("taking Ignition back from VM %d on host %s as root, %w", in.VMID, host, err)
	}
	return nil
}

// errNoRoot says that what is to be done takes root.
var errNoRoot = errors.New("the cloud config has no login of root")

// root of a region.
func (p *Provider) root(region string) (proxmox.Root, error) {
	root, ok := p.Roots[region]
	if !ok {
		return nil, fmt.Errorf("region %s: %w", region, errNoRoot)
	}
	return root, nil
}

// HasRoot tells whether a region has a login of root.
func (p *Provider) HasRoot(region string) bool {
	_, ok := p.Roots[region]
	return ok
}
