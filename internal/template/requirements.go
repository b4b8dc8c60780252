// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template

import (
	"fmt"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/poll"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/privileges"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// PlannedConfig returns the configuration of the Template that is built at a Location.
func PlannedConfig(desired Desired, location Location) proxmox.VMConfig {
	options := createOptions(desired, location, "", ownership.Mark{})
	options["template"] = "1"
	if len(desired.Spec.Tags) > 0 {
		options["tags"] = strings.Join(desired.Spec.Tags, ";")
	}
	return proxmox.VMConfig{Options: options}
}

// checkPrivileges sets the required and missing privileges of the Location. It reports
// whether objects may be invisible because some are missing.
func (l *Location) checkPrivileges(snapshot *observed.Snapshot, desired Desired) (hidden bool) {
	if snapshot.Facts == nil || snapshot.Facts.Permissions == nil {
		return false // not read yet
	}
	l.Required = privileges.ForTemplate(privileges.Template{
		Snapshot: snapshot, Host: l.Host, ImageStorage: l.Images, Storage: l.Storage, Storages: desired.Spec.StorageIDs,
		Volume: desired.Spec.SourceImage.Volume != "", ResourcePool: desired.Spec.ResourcePool, Config: PlannedConfig(desired, *l),
		Prepared: desired.Spec.Prepare != nil, BootDriveStorage: l.BootDrives,
	})
	account := privileges.NewAccount(snapshot.Facts)
	l.MissingPrivileges = account.Message(l.Required)
	return account.HidesObjects(account.Missing(l.Required))
}

// networkProblem returns why VMs of the Template could not start on a Host: it lacks a
// bridge.
func networkProblem(snapshot *observed.Snapshot, host string, desired Desired) string {
	if snapshot.Facts == nil {
		return ""
	}
	for n, spec := range desired.Spec.Network {
		nic := proxmox.NIC{Bridge: spec.Bridge, VLAN: int(spec.VLAN)}
		if p := network.CheckBridge(snapshot.Facts, host, fmt.Sprintf("spec.network[%d]", n), "set another one", nic); p != nil {
			return p.Message
		}
	}
	return ""
}

// specProblem returns why a Template with the boot data, resource pool and tags of the spec
// cannot be built on any Host of the Cluster.
func specProblem(snapshot *observed.Snapshot, desired Desired) string {
	if desired.Problem != "" && desired.BootDataHash == "" {
		return desired.Problem
	}
	if snapshot.Facts == nil {
		return ""
	}
	pool := desired.Spec.ResourcePool
	if exists, known := snapshot.Facts.Pools[pool]; known && !exists {
		return fmt.Sprintf("spec.resourcePool %q does not exist; run: pveum pool add %s", pool, pool)
	}
	for _, tag := range desired.Spec.Tags {
		if reason := privileges.ForbiddenTag(snapshot, tag); reason != "" {
			return fmt.Sprintf("spec.tags: tag %q is not allowed: %s", tag, reason)
		}
	}
	return ""
}

// Facts returns the facts that the check of a ProxmoxTemplate on a Host reads. They are
// read again while it fails.
func Facts(desired Desired, host string) []poll.Fact {
	facts := []poll.Fact{poll.FactPermissions, poll.FactRoles, poll.FactOptions, poll.FactVNets, poll.FactBridges(host)}
	if pool := desired.Spec.ResourcePool; pool != "" {
		facts = append(facts, poll.FactPool(pool))
	}
	return facts
}
