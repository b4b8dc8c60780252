// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim_test

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// The config call accepts invalid NUMA settings; the start task rejects them.
func TestStartNUMA(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		options map[string]string
		exit    string
	}{
		"existing node":        {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=1,memory=1024,policy=bind"}, "OK"},
		"two nodes":            {map[string]string{"numa": "1", "numa0": "cpus=0,hostnodes=0,memory=512,policy=bind", "numa1": "cpus=1,hostnodes=1,memory=512,policy=bind"}, "OK"},
		"several host nodes":   {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0-1,memory=1024,policy=interleave"}, "OK"},
		"ignored without numa": {map[string]string{"numa0": "cpus=0-1,hostnodes=7,memory=1,policy=bind"}, "OK"},
		"missing host node":    {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0;2,memory=1024,policy=bind"}, "host NUMA node2 doesn't exist"},
		"memory does not add up": {
			map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0,memory=1000,policy=bind"}, "total memory for NUMA nodes must be equal to vm static memory",
		},
		"no memory":            {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0,policy=bind"}, "missing NUMA node0 memory value"},
		"no policy":            {map[string]string{"numa": "1", "numa0": "cpus=0-1,hostnodes=0,memory=1024"}, "you need to define a policy for hostnode 0"},
		"hugepages":            {map[string]string{"numa": "1", "hugepages": "1024", "numa0": "cpus=0-1,hostnodes=0,memory=1024,policy=bind"}, "OK"},
		"hugepages by sockets": {map[string]string{"numa": "1", "hugepages": "2"}, "OK"},
		"hugepages, no numa":   {map[string]string{"hugepages": "1024"}, "numa needs to be enabled to use hugepages"},
		"hugepages, no cell":   {map[string]string{"numa": "1", "hugepages": "2", "numa0": "cpus=0-1,memory=1024"}, "numa hostnodes need to be defined to use hugepages"},
		"hugepages, two cells": {
			map[string]string{"numa": "1", "hugepages": "2", "numa0": "cpus=0-1,hostnodes=0-1,memory=1024,policy=bind"}, "only 1 hostnode value allowed per numa node with hugepages",
		},
		"partial page": {
			map[string]string{"numa": "1", "hugepages": "1024", "numa0": "cpus=0,hostnodes=0,memory=512,policy=bind", "numa1": "cpus=1,hostnodes=1,memory=512,policy=bind"},
			"Memory size 512 is not a multiple of the requested hugepages size 1024",
		},
	} {
		runSimulated(t, name, func(t *testing.T, g *WithT) {
			scenario := pvesim.DefaultScenario(1)
			scenario.Hosts[0].NUMA = 2
			options := map[string]string{"cores": "2", "memory": "1024"}
			maps.Copy(options, test.options)
			scenario.Guests = append(scenario.Guests, pvesim.Guest{VMID: 300, Host: "pve1", Name: "numa", Config: options})
			g.Expect(startSim(t, scenario, pvesim.Options{}).ends("POST", "/nodes/pve1/qemu/300/status/start")).To(Equal(test.exit), "start ended")
		})
	}
}
