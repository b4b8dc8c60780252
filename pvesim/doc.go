// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pvesim simulates Proxmox VE inside a test: it serves the HTTP API of versions 8.4 and 9.2 with their locks,
// tasks, permissions, delays and intermediate states, and it can inject faults.
//
//	sim, err := pvesim.New(pvesim.DefaultScenario(3), pvesim.Options{Speed: 50})
//	...
//	err = sim.Start(ctx)
//	defer sim.Close()
//	client := connect(sim.URL(), sim.CAPEM(), pvesim.DefaultTokenID, pvesim.DefaultTokenSecret)
//
// A GuestRuntime runs inside the VMs. docs/pvesim.md lists what is modeled and what is not.
package pvesim
