// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strconv"

	"github.com/mitchellh/hashstructure/v2"
)

// HashVersion is the version of all hashes in this package. Hashes of different versions are never compared: the provider
// then writes the new hash to the Claims instead of calling them drifted. Raise it whenever a release would hash an
// unchanged object differently.
//
// It starts at v2 because v1 belongs to the provider that defined these kinds. Clusters that move from there hold its hashes,
// which ours would not equal, and every one of their Nodes would drift at once.
const HashVersion = "v2"

// Hash covers the fields whose change replaces the Nodes of this class. Tags, security groups and resource pool are not
// among them, nor is what counts for new VMs only: placement strategy, metadata options, network and hook scripts.
func (in *ProxmoxNodeClass) Hash() string {
	return hashOf(in.Spec)
}

// InPlaceHash covers the fields whose change is written to running VMs: tags, security groups and resource pool.
func (in *ProxmoxNodeClass) InPlaceHash() string {
	return hashOf(struct {
		Tags           []string
		SecurityGroups []SecurityGroup
		ResourcePool   string
	}{in.Spec.Tags, in.Spec.SecurityGroups, in.Spec.ResourcePool})
}

// Hash covers the fields whose change makes a new Template: source image, storages, firmware and TPM.
func (in *ProxmoxTemplate) Hash() string {
	return hashOf(in.Spec)
}

// InPlaceHash covers the fields whose change is written to the existing Template: all that Hash leaves out, apart from the
// region, which only says where Templates are.
func (in *ProxmoxTemplate) InPlaceHash() string {
	spec := in.Spec

	return hashOf(struct {
		Description  string
		Machine      string
		Agent        *Agent
		CPU          CPU
		VGA          *VGA
		Network      []NetworkInterface
		PCIDevices   []PCIDevice
		Tags         []string
		ResourcePool string
		OnBoot       *bool
	}{
		spec.Description, spec.Machine, spec.Agent, spec.CPU, spec.VGA, spec.Network, spec.PCIDevices, spec.Tags,
		spec.ResourcePool, spec.OnBoot,
	})
}

// Hash covers everything that says which Proxmox templates are meant.
func (in *ProxmoxUnmanagedTemplate) Hash() string {
	return hashOf(in.Spec)
}

func hashOf(value any) string {
	hash, err := hashstructure.Hash(value, hashstructure.FormatV2, &hashstructure.HashOptions{
		SlicesAsSets:    true,
		IgnoreZeroValue: true,
		ZeroNil:         true,
	})
	if err != nil {
		// Only channels and functions cannot be hashed, and no type here has one.
		return ""
	}

	return strconv.FormatUint(hash, 10)
}
