// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

const providerIDPrefix = "proxmox://"

// The range of VMIDs that Proxmox accepts.
const (
	MinVMID = 100
	MaxVMID = 999_999_999
)

// ProviderID identifies a VM in spec.providerID of its Node: proxmox://<region>/<vmid>. The Proxmox cloud controller manager
// uses the same format. It does not contain the Host, so it stays valid when the VM migrates.
type ProviderID struct {
	Region string
	VMID   int
}

// String returns the ID in the format of spec.providerID.
func (id ProviderID) String() string {
	return providerIDPrefix + id.Region + "/" + strconv.Itoa(id.VMID)
}

// ParseProviderID parses the format that String returns. It fails on any deviation, because a leniently parsed provider ID
// could identify another VM.
func ParseProviderID(text string) (ProviderID, error) {
	rest, ok := strings.CutPrefix(text, providerIDPrefix)
	if !ok {
		return ProviderID{}, fmt.Errorf("parsing provider ID %q: want proxmox://<region>/<vmid>", text)
	}

	region, number, ok := strings.Cut(rest, "/")
	if !ok {
		return ProviderID{}, fmt.Errorf("parsing provider ID %q: want proxmox://<region>/<vmid>", text)
	}

	if err := checkRegion(region); err != nil {
		return ProviderID{}, fmt.Errorf("parsing provider ID %q: %w", text, err)
	}

	vmid, err := parseVMID(number)
	if err != nil {
		return ProviderID{}, fmt.Errorf("parsing provider ID %q: %w", text, err)
	}

	return ProviderID{Region: region, VMID: vmid}, nil
}

// checkRegion returns an error if the region cannot be the value of the label topology.kubernetes.io/region.
func checkRegion(region string) error {
	if region == "" {
		return fmt.Errorf("region is empty")
	}

	if problems := validation.IsValidLabelValue(region); len(problems) > 0 {
		return fmt.Errorf("region %q cannot be a label value: %s", region, strings.Join(problems, "; "))
	}

	return nil
}

// parseVMID parses a VMID. It rejects signs, leading zeros and spaces, which strconv or Proxmox would accept.
func parseVMID(text string) (int, error) {
	vmid, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(vmid) != text {
		return 0, fmt.Errorf("VMID %q is not a plain number", text)
	}

	if vmid < MinVMID || vmid > MaxVMID {
		return 0, fmt.Errorf("VMID %d is not between %d and %d", vmid, MinVMID, MaxVMID)
	}

	return vmid, nil
}
