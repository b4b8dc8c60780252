// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pvesim is a Proxmox VE that runs inside a test: it speaks the HTTP API of versions 8.4 and 9.2 with their locks,
// tasks, permissions, delays and awkward states, and it can be made to fail.
//
//	sim, err := pvesim.New(pvesim.DefaultScenario(3), pvesim.Options{Speed: 50})
//	...
//	err = sim.Start(ctx)
//	defer sim.Close()
//	client := connect(sim.URL(), sim.CAPEM(), pvesim.DefaultTokenID, pvesim.DefaultTokenSecret)
//
// What is inside the VMs is up to a GuestRuntime; see docs/pvesim.md for what is modelled and what is not.
package pvesim
