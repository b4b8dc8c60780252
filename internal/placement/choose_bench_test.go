// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"fmt"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/placement"
)

// bigRequest returns a request for 60 types on 100 Hosts with 1000 Reservations.
func bigRequest() (inventory.View, placement.Request) {
	env := newEnv()
	var names []string
	for h := range 100 {
		names = append(names, fmt.Sprint("pve", h))
		env.host("r", names[h], 128, 512)
	}
	for n := range 1000 {
		env.reserve(inventory.Reservation{ClaimUID: fmt.Sprint("reserved-", n), NodePool: "p", Region: "r", Host: names[n%100], VMID: 20000 + n,
			Amount: inventory.Amount{CPUs: 4, MemoryBytes: 16 * gib}})
	}
	request := placement.Request{ClaimUID: "a", NodePool: "p"}
	for o := range 60 {
		request.Options = append(request.Options, placement.Option{
			InstanceType: fmt.Sprint("t", o), Need: need(1+o, int64(1+o)), Zones: zones(names...)})
	}
	return env.view(), request
}

func BenchmarkChoose(b *testing.B) {
	view, request := bigRequest()
	for b.Loop() {
		if _, err := placement.Choose(view, request); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkChooseNothingFits measures the worst case: every option on every Host.
func BenchmarkChooseNothingFits(b *testing.B) {
	view, request := bigRequest()
	for n := range request.Options {
		request.Options[n].Need.CPUs += 128
	}
	for b.Loop() {
		if _, err := placement.Choose(view, request); err == nil {
			b.Fatal("something fits")
		}
	}
}
