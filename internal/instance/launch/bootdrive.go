// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// ensureBootDrive renders the boot data and uploads it. A repeated upload replaces the
// file: its name is that of the Claim.
func (a *attempt) ensureBootDrive(ctx context.Context) error {
	if a.intent.ISOStorage == "" {
		return nil
	}
	overhead, capacity := a.nodeResources()
	image, hash, err := a.boot.Image(ctx, boot.Request{
		Class: a.class, Claim: a.claim, Intent: a.intent, Overhead: overhead, Capacity: capacity,
		Bridges: func(name string) proxmox.Bridge {
			return network.FindBridge(a.deps.Inventory.View(), a.intent.Region, a.intent.Host, name)
		},
	})
	if err != nil {
		return err
	}
	if err := a.recordBootData(ctx, hash); err != nil {
		return err
	}
	task, err := a.client.UploadISO(ctx, a.intent.Host, a.intent.ISOStorage, a.id.BootDriveName(), image)
	if err == nil {
		_, err = a.deps.Tasks.Wait(ctx, a.client, task)
	}
	if err != nil {
		return fmt.Errorf("uploading the boot drive to storage %s of host %s: %w", a.intent.ISOStorage, a.intent.Host, err)
	}
	a.reach(instance.PhaseBootDrive)
	return nil
}

// recordBootData records what the boot data is made of, if a change of it replaces the Node.
func (a *attempt) recordBootData(ctx context.Context, hash string) error {
	if !a.class.Spec.MetadataOptions.ReplacesOnChange() || a.claim.Annotations[v1alpha1.AnnotationBootDataHash] == hash {
		return nil
	}
	return instance.Annotate(ctx, a.deps.Kube, a.claim, map[string]string{v1alpha1.AnnotationBootDataHash: hash})
}

// nodeResources returns the overhead and the capacity that the instance type was offered
// with. If the type was removed from the catalog, the kubelet's defaults apply.
func (a *attempt) nodeResources() (cloudprovider.InstanceTypeOverhead, corev1.ResourceList) {
	it, ok := a.types.Get(a.class, a.intent.InstanceType)
	if !ok || it.Overhead == nil {
		return cloudprovider.InstanceTypeOverhead{}, nil
	}
	return *it.Overhead, it.Capacity
}
