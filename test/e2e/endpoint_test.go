// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// door stands before a Proxmox cluster. While it is closed, nobody answers at
// the address, as when pveproxy is down.
type door struct {
	t       *testing.T
	address string
	behind  string
	forward *harness.Forward
}

// newDoor makes a closed door with an address of its own.
func newDoor(t *testing.T, proxmox *harness.Proxmox) *door {
	t.Helper()
	return newDoorTo(t, proxmox.Host())
}

// newDoorTo makes a closed door to an address.
func newDoorTo(t *testing.T, behind string) *door {
	t.Helper()
	d := &door{t: t, address: "127.0.0.1:0", behind: behind}
	d.open()
	d.address = d.forward.Address()
	d.close()
	t.Cleanup(d.close)
	return d
}

// leadsTo gives the cluster's config with the door's address.
func (d *door) leadsTo(c harness.Cluster) harness.Cluster {
	c.URLs = []string{"https://" + d.address}
	return c
}

func (d *door) open() {
	d.t.Helper()
	var err error
	d.forward, err = harness.StartForward(d.t.Context(), d.address, d.behind)
	must(d.t, err)
}

func (d *door) close() { d.forward.Close() }
