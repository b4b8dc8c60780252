// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package observed

import (
	"fmt"
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
