// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory_test

import (
	"fmt"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// bigCluster returns a Cluster of 100 Hosts with three storages each and 5000 guests of
// other users.
func bigCluster() *cluster {
	c := newCluster("r")
	for h := range 100 {
		name := fmt.Sprintf("pve%d", h)
		c.resources.Hosts = append(c.resources.Hosts, host(name, 128, 1024))
		for _, storage := range []string{"local", "local-lvm", "ceph"} {
			c.resources.Storages = append(c.resources.Storages, proxmox.StorageRow{
				Name: storage, Host: name, Shared: storage == "ceph", Available: true, TotalBytes: 1000 * gib,
			})
		}
		for g := range 50 {
			c.resources.Guests = append(c.resources.Guests, vm(100+h*50+g, name, "running", 2, 4))
		}
	}
	return c
}

// BenchmarkReserve makes and releases one Reservation in a ledger of a thousand.
func BenchmarkReserve(b *testing.B) {
	i, err := inventory.New([]proxmox.Client{bigCluster()}, inventory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	if err := i.Refresh(b.Context(), "r"); err != nil {
		b.Fatal(err)
	}
	decide := func(vmid int) inventory.DecideFunc {
		return func(inventory.View) (inventory.Reservation, error) {
			return inventory.Reservation{Region: "r", Host: fmt.Sprintf("pve%d", vmid%100), VMID: vmid, Amount: amount(2, 4)}, nil
		}
	}
	for n := range 1000 {
		if _, err := i.Ledger().Reserve(fmt.Sprint("existing-", n), decide(20000+n)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := i.Ledger().Reserve("new", decide(30000)); err != nil {
			b.Fatal(err)
		}
		i.Ledger().Release("new")
	}
}

// BenchmarkPoll measures the inventory's part of a poll without changes.
func BenchmarkPoll(b *testing.B) {
	i, err := inventory.New([]proxmox.Client{bigCluster()}, inventory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := i.Refresh(b.Context(), "r"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkView(b *testing.B) {
	i, err := inventory.New([]proxmox.Client{bigCluster()}, inventory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = i.View()
	}
}
