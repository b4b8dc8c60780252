// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// TemplateZone is an entry of zones or selectedZones in a status: a Template on a Host.
type TemplateZone struct {
	Region string
	Host   string
	VMID   int
}

// String returns the zone in the format of the status: <region>/<host>/<vmid>.
func (z TemplateZone) String() string {
	return z.Zone() + "/" + strconv.Itoa(z.VMID)
}

// Zone returns the Host without the Template, in the format of unusableZones: <region>/<host>.
func (z TemplateZone) Zone() string {
	return z.Region + "/" + z.Host
}

// ParseTemplateZone parses the format that String returns.
func ParseTemplateZone(text string) (TemplateZone, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return TemplateZone{}, fmt.Errorf("parsing zone %q: want <region>/<host>/<vmid>", text)
	}

	if err := checkRegion(parts[0]); err != nil {
		return TemplateZone{}, fmt.Errorf("parsing zone %q: %w", text, err)
	}

	// A Proxmox host name is a DNS label.
	if problems := validation.IsDNS1123Label(strings.ToLower(parts[1])); len(problems) > 0 {
		return TemplateZone{}, fmt.Errorf("parsing zone %q: host %q: %s", text, parts[1], strings.Join(problems, "; "))
	}

	vmid, err := parseVMID(parts[2])
	if err != nil {
		return TemplateZone{}, fmt.Errorf("parsing zone %q: %w", text, err)
	}

	return TemplateZone{Region: parts[0], Host: parts[1], VMID: vmid}, nil
}
