// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// HostName identifies a Host of all Clusters.
type HostName struct{ Region, Host string }

// String returns the name as messages contain it: region/host.
func (n HostName) String() string { return n.Region + "/" + n.Host }

// Key returns the name as a key of a ConfigMap: region.host. The name of a Proxmox host
// has no dot, so the key is unambiguous.
func (n HostName) Key() string { return n.Region + "." + n.Host }

// ParseHostKey returns the Host of a key; see HostName.Key.
func ParseHostKey(key string) (HostName, error) {
	dot := strings.LastIndexByte(key, '.')
	if dot < 1 || dot == len(key)-1 {
		return HostName{}, fmt.Errorf("key %q: want REGION.HOST, for example home.pve1", key)
	}
	return HostName{Region: key[:dot], Host: key[dot+1:]}, nil
}

// Maintenance are the Hosts that administrators put into maintenance in Kubernetes, with
// their reason, which may be empty. Hosts in Proxmox's own HA maintenance are not listed.
type Maintenance map[HostName]string

// ParseMaintenance reads the data of a ConfigMap: each key is a Host (see HostName.Key),
// each value a reason. It returns the valid entries, and an error for each other one.
func ParseMaintenance(data map[string]string) (Maintenance, []error) {
	hosts, errs := Maintenance{}, []error(nil)
	for _, key := range slices.Sorted(maps.Keys(data)) {
		name, err := ParseHostKey(key)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		hosts[name] = strings.TrimSpace(data[key])
	}
	return hosts, errs
}

// describe returns who put a Host into maintenance and why; empty if nobody did.
func (m Maintenance) describe(name HostName) string {
	reason, ok := m[name]
	switch {
	case !ok:
		return ""
	case reason == "":
		return "requested in Kubernetes"
	}
	return "requested in Kubernetes: " + reason
}
