// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
)

// HostInfo is what a Host tells about its hardware. Which CPU belongs to which
// core or NUMA cell Proxmox does not tell anywhere.
type HostInfo struct {
	Sockets int
	// Cores of all sockets together.
	Cores int
	// CPUs are threads: as many as the Host's row says.
	CPUs int
}

// HostInfo reads a Host's hardware. It needs Sys.Audit on the Host.
func (c *client) HostInfo(ctx context.Context, host string) (HostInfo, error) {
	var out struct {
		CPUInfo struct {
			Sockets numeric `json:"sockets"`
			Cores   numeric `json:"cores"`
			CPUs    numeric `json:"cpus"`
		} `json:"cpuinfo"`
	}
	if err := c.get(ctx, at("/nodes/{node}/status", host), &out); err != nil {
		return HostInfo{}, fmt.Errorf("reading the hardware of host %s, %w", host, err)
	}
	return HostInfo{Sockets: int(out.CPUInfo.Sockets), Cores: int(out.CPUInfo.Cores), CPUs: int(out.CPUInfo.CPUs)}, nil
}
