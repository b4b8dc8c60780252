// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/uuid"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/network"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// sampleToken replaces the join token in previews.
const sampleToken = "abcdef.0123456789abcdef"

// Preview renders the boot data of a NodeClass. With a Claim it is that of the Claim's
// VM, as far as the Claim shows it; without one, that of a sample VM. The join token, MAC
// addresses and the addresses of the Host's bridges are samples in either case.
func (s Source) Preview(ctx context.Context, class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim) (bootdata.Files, error) {
	var planned *instance.Intent
	if claim == nil {
		claim = sampleClaim(class)
	} else if in, ok := instance.ReadIntent(claim); ok {
		held := in.Network.Addresses()
		in.MACs, in.Network = sampleNetwork(class)
		in.Network = in.Network.WithAddresses(held)
		planned = &in
	}
	source, data, err := s.previewData(ctx, class, claim, planned, inventory.View{})
	if err != nil {
		return bootdata.Files{}, err
	}
	return source.render(data)
}

// previewData returns the templates of a NodeClass, and the data that they are rendered with for a plan
// of a VM; nil is that of a sample. Bridges that the view does not have get sample addresses.
func (s Source) previewData(
	ctx context.Context, class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim, planned *instance.Intent, view inventory.View,
) (templates, bootdata.Data, error) {
	intent := sampleIntent("region", "host")
	if planned != nil {
		intent = *planned
	} else {
		intent.Disks = class.Spec.Disks
		intent.MACs, intent.Network = sampleNetwork(class)
	}
	source, err := s.templates(ctx, class.Spec.MetadataOptions)
	if err != nil {
		return templates{}, bootdata.Data{}, err
	}
	rootCA, err := s.rootCA(ctx)
	if err != nil {
		return templates{}, bootdata.Data{}, err
	}
	data, err := s.data(ctx, Request{
		Class: class, Claim: claim, Intent: intent,
		// Every instance type has reserved CPUs: some settings of the kubelet need them.
		Overhead: cloudprovider.InstanceTypeOverhead{KubeReserved: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
		Capacity: claim.Status.Capacity,
		Bridges: func(name string) proxmox.Bridge {
			if bridge := network.FindBridge(view, intent.Region, intent.Host, name); bridge.Name != "" {
				return bridge
			}
			return sampleBridge
		},
	}, source, sampleToken, rootCA)
	return source, data, err
}

// sampleBridge has addresses that are reserved for documentation.
var sampleBridge = proxmox.Bridge{
	CIDR4: netip.MustParsePrefix("192.0.2.2/24"), Gateway4: netip.MustParseAddr("192.0.2.1"),
	CIDR6: netip.MustParsePrefix("2001:db8::2/64"), Gateway6: netip.MustParseAddr("2001:db8::1"),
}

// sampleInstanceType is the instance type of sample VMs.
const sampleInstanceType = "sample"

func sampleIntent(region, host string) instance.Intent {
	return instance.Intent{Region: region, Host: host, VMID: v1alpha1.MinVMID, InstanceType: sampleInstanceType, Cores: 1, MemoryMiB: 1024}
}

func sampleClaim(class *v1alpha1.ProxmoxNodeClass) *karpv1.NodeClaim {
	claim := &karpv1.NodeClaim{}
	claim.Name = class.Name + "-sample"
	claim.UID = uuid.NewUUID()
	claim.Labels = map[string]string{karpv1.NodePoolLabelKey: "sample"}
	return claim
}

// plannedSample returns a plan for a sample Claim, so templates are rendered with the
// interfaces and addresses that VMs will have; nil while no Template is known.
func plannedSample(view inventory.View, class *v1alpha1.ProxmoxNodeClass, claim *karpv1.NodeClaim) *instance.Intent {
	for _, entry := range class.Status.SelectedZones {
		zone, err := v1alpha1.ParseTemplateZone(entry)
		if err != nil {
			continue
		}
		template, ok := view.Guest(zone.Region, zone.VMID)
		if !ok || template.Config == nil {
			continue
		}
		layout, err := network.NewLayout(class, *template.Config)
		if err != nil {
			continue
		}
		in := sampleIntent(zone.Region, zone.Host)
		in.MACs, in.Disks = map[string]string{}, class.Spec.Disks
		for _, i := range layout.Interfaces {
			in.MACs[i.Slot] = vmconfig.DeriveMAC(view.Snapshots[zone.Region].Options.MACPrefix, string(claim.UID), i.Slot, nil)
		}
		if in.Network, err = layout.Assign(network.Request{View: view, Region: zone.Region, Host: zone.Host, Key: string(claim.UID)}); err != nil {
			// An exhausted AddressPool does not make the templates invalid.
			in.Network, _ = layout.Assign(network.Request{Region: zone.Region, Host: zone.Host, Key: string(claim.UID)})
		}
		return &in
	}
	return nil
}

// sampleNetwork returns the interfaces of a sample VM as far as the class defines them.
func sampleNetwork(class *v1alpha1.ProxmoxNodeClass) (map[string]string, network.Assignment) {
	template := proxmox.VMConfig{Options: map[string]string{"net0": "virtio"}}
	if class.Spec.Network != nil {
		for _, i := range class.Spec.Network.Interfaces {
			template.Options[i.Name] = "virtio"
		}
	}
	for _, group := range class.Spec.SecurityGroups {
		template.Options[group.Interface] = "virtio"
	}
	macs := map[string]string{}
	for n, nic := range template.Network().NICs() {
		macs[nic.Slot] = fmt.Sprintf("BC:24:11:00:00:%02X", n)
	}
	layout, err := network.NewLayout(class, template)
	if err != nil {
		return macs, network.Assignment{} // the class's status reports it
	}
	assigned, _ := layout.Assign(network.Request{Key: class.Name}) // no address is in use, so no pool is exhausted
	return macs, assigned
}
