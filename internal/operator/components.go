// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/backoff"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/cloudprovider"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/garbagecollection"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclaim/vmhealth"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// InstanceSettings returns the settings of the instance provider.
func (o *Options) InstanceSettings() instance.Settings {
	return instance.Settings{
		SystemNamespace:       o.SystemNamespace,
		VMIDs:                 placement.Range{From: o.ProxmoxVMID, To: o.ProxmoxVMIDMax, Exclude: o.ProxmoxExcludedVMIDs},
		CloneSlots:            o.ProxmoxCloneSlots,
		TaskTimeout:           o.ProxmoxTaskTimeout,
		LaunchRetryTimeout:    o.LaunchRetryTimeout,
		StaticCapacityTimeout: staticCapacityTimeout,
		OperationTimeout:      operationTimeout,
		ShutdownTimeout:       o.ShutdownTimeout,
		HostRemovedAfter:      hostRemovedAfter,
		CloneSlowAfter:        cloneSlowAfter,
		CloneRefuseAfter:      cloneRefuseAfter,
	}
}

// TemplateSettings returns the settings of the template provider.
func (o *Options) TemplateSettings() template.Settings {
	return template.Settings{
		VMIDs:            placement.Range{From: o.ProxmoxTemplateVMID, To: o.ProxmoxTemplateVMIDMax, Exclude: o.ProxmoxExcludedVMIDs},
		Builds:           templateBuilds,
		TaskTimeout:      o.ProxmoxTaskTimeout,
		GracePeriod:      durationFor("template-grace-period", templateGracePeriod),
		HostRemovedAfter: hostRemovedAfter,
		// Even a minimal image takes longer to boot and install something.
		BuilderMinRuntime: 10 * time.Second,
	}
}

// Pricing returns the prices that offerings are calculated from.
func (o *Options) Pricing() instancetype.Pricing {
	return instancetype.Pricing{PerVCPU: o.PricePerVCPU, PerGB: o.PricePerGB, PerNode: o.PricePerNode, PerDevice: o.PricePerDevice}
}

// FailureBackoff returns the backoff of offerings after failed launches.
func FailureBackoff() backoff.Exponential {
	initial := durationFor("launch-failure-backoff", launchFailureBackoff)
	return backoff.Exponential{Initial: initial, Max: 10 * initial}
}

// minReplacementMaxFraction is the minimum of the fraction of VMs that are replaced: a host that failed can
// have many VMs.
const minReplacementMaxFraction = 0.5

// RestartPolicy returns the limits for starting stopped VMs.
func (o *Options) RestartPolicy() vmhealth.RestartPolicy {
	fraction := instance.SafetyThreshold(max(o.OrphanDeletionMaxFraction, minReplacementMaxFraction))
	return vmhealth.RestartPolicy{Backoff: restartBackoff, Limit: restartLimit, ReplacementMaxFraction: fraction}
}

// CloudProviderSettings returns the settings of the cloud provider.
func (o *Options) CloudProviderSettings() cloudprovider.Settings {
	return cloudprovider.Settings{
		HostDriftAfter: o.HostDriftAfter, DrainMaintenance: o.HostMaintenancePolicy == maintenance.PolicyDrain,
		ReplacementMaxFraction: o.RestartPolicy().ReplacementMaxFraction,
		Repair: cloudprovider.RepairTolerations{
			Unready: o.RepairUnreadyToleration, Request: durationFor("repair-request-toleration", repairRequestToleration), Drain: o.RepairDrainTimeout,
		},
	}
}

// OrphanRules returns the rules of garbage collection.
func (o *Options) OrphanRules() garbagecollection.Rules {
	return garbagecollection.Rules{
		Policy: o.OrphanPolicy, GracePeriod: o.OrphanGracePeriod, DeletionMaxFraction: instance.SafetyThreshold(o.OrphanDeletionMaxFraction),
	}
}
