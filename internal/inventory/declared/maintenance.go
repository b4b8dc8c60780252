// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package declared

import (
	"maps"
	"slices"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
)

// Maintenance are the Hosts that administrators put into maintenance in Kubernetes, with
// their reason, which may be empty. Hosts in Proxmox's own HA maintenance are not listed.
type Maintenance map[observed.HostName]string

// ParseMaintenance reads the data of a ConfigMap: each key is a Host (see HostName.Key),
// each value a reason. It returns the valid entries, and an error for each other one.
func ParseMaintenance(data map[string]string) (Maintenance, []error) {
	hosts, errs := Maintenance{}, []error(nil)
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name, err := observed.ParseHostKey(key)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		hosts[name] = strings.TrimSpace(data[key])
	}
	return hosts, errs
}

// Describe returns who put a Host into maintenance and why; empty if nobody did.
func (m Maintenance) Describe(name observed.HostName) string {
	reason, ok := m[name]
	switch {
	case !ok:
		return ""
	case reason == "":
		return "requested in Kubernetes"
	}
	return "requested in Kubernetes: " + reason
}
