// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	"github.com/mitchellh/hashstructure/v2"
)

// HashVersion is the version of all hashes in this package. Hashes of different versions are never compared: if the versions
// differ, the provider writes the new hash to the Claims and does not report drift. Increment it whenever a release hashes
// an unchanged object differently.
//
// It starts at v2 because v1 belongs to the provider that defined these kinds. Clusters that migrate from it store its
// hashes, which differ from ours; with the same version all their Nodes would drift.
const HashVersion = "v2"

// BootDataHashPrefix is the start of all hashes of boot data: their version.
const BootDataHashPrefix = HashVersion + "-"

// Hash returns a hash of the fields whose change replaces the Nodes of this class. It excludes the fields that are updated
// in place (tags, security groups, resource pool and HA) and those that apply to new VMs only (placement strategy, metadata
// options, the addresses and routes of the network, and hook scripts).
func (in *ProxmoxNodeClass) Hash() string {
	raw, err := json.Marshal(in.HashedFields())
	if err != nil {
		// Strings always marshal.
		panic(err)
	}

	hash := fnv.New64a()
	_, _ = hash.Write(raw)

	return strconv.FormatUint(hash.Sum64(), 10)
}

// LaunchAnnotations returns the annotations of a NodeClaim that record which version of this class its VM was created with.
func (in *ProxmoxNodeClass) LaunchAnnotations() map[string]string {
	return map[string]string{
		AnnotationNodeClassHash:        in.Hash(),
		AnnotationNodeClassHashVersion: HashVersion,
	}
}

// InPlaceHash returns a hash of the fields whose change is written to running VMs: tags, security groups, resource
// pool and HA.
func (in *ProxmoxNodeClass) InPlaceHash() string {
	return hashOf(struct {
		Tags             []string
		SecurityGroups   []SecurityGroup
		ResourcePool     string
		HighAvailability *HighAvailability
	}{in.Spec.Tags, in.Spec.SecurityGroups, in.Spec.ResourcePool, in.Spec.HighAvailability})
}

// Hash returns a hash of the fields whose change creates a new Template: source image, preparation, storages, firmware and
// TPM. The checksum that was read from checksumURL counts as one in the spec. With a preparation it includes the content of
// the referenced Secrets and the time of the last refresh, which are in the status.
func (in *ProxmoxTemplate) Hash() string {
	spec := in.Spec
	spec.SourceImage = in.Source().content()

	if spec.Prepare == nil {
		return hashOf(spec)
	}

	state := PreparationStatus{}
	if in.Status.Preparation != nil {
		state = *in.Status.Preparation
	}

	refreshed := int64(0)
	if state.RefreshedAt != nil {
		refreshed = state.RefreshedAt.Unix()
	}

	return hashOf(struct {
		Spec      ProxmoxTemplateSpec
		BootData  string
		Refreshed int64
	}{spec, state.BootDataHash, refreshed})
}

// InPlaceHash returns a hash of the fields whose change is written to the existing Template: all that Hash excludes, except
// for the region, which only selects where Templates are created.
func (in *ProxmoxTemplate) InPlaceHash() string {
	spec := in.Spec

	return hashOf(struct {
		Description  string
		Machine      string
		Agent        *Agent
		CPU          CPU
		VGA          *VGA
		Tags         []string
		ResourcePool string
		OnBoot       *bool
		Lists        string
	}{
		spec.Description, spec.Machine, spec.Agent, spec.CPU, spec.VGA, spec.Tags, spec.ResourcePool, spec.OnBoot,
		spec.orderedLists(),
	})
}

// orderedLists encodes the interfaces, with their name servers, and the PCI devices: their order and number count, and hashOf
// treats lists as sets.
func (s ProxmoxTemplateSpec) orderedLists() string {
	raw, err := json.Marshal([]any{s.Network, s.PCIDevices})
	if err != nil {
		// Strings, numbers and booleans always marshal.
		panic(err)
	}

	return string(raw)
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
