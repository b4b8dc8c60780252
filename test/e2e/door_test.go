// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// door stands before a Proxmox cluster. While it is closed, nobody answers at
// the address, as when pveproxy is down.
type door struct {
	t       *testing.T
	address string
	behind  string

	mu       sync.Mutex
	listener net.Listener
	through  []net.Conn
}

// newDoor makes a closed door with an address of its own.
func newDoor(t *testing.T, proxmox *harness.Proxmox) *door {
	t.Helper()
	d := &door{t: t, address: "127.0.0.1:0", behind: proxmox.Host()}
	d.open()
	d.address = d.listener.Addr().String()
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
	listener, err := net.Listen("tcp", d.address)
	must(d.t, err)
	d.mu.Lock()
	d.listener = listener
	d.mu.Unlock()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go d.pass(conn)
		}
	}()
}

func (d *door) pass(in net.Conn) {
	out, err := net.Dial("tcp", d.behind)
	if err != nil {
		_ = in.Close()
		return
	}
	d.mu.Lock()
	d.through = append(d.through, in, out)
	d.mu.Unlock()
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
	_, _ = io.Copy(in, out)
	_ = in.Close()
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	_ = d.listener.Close()
	for _, conn := range d.through {
		_ = conn.Close()
	}
	d.through = nil
}
