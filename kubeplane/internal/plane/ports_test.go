// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"context"
	"net"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReservePort(t *testing.T) {
	t.Parallel()
	seen := map[int]bool{}
	for range 500 {
		p, err := reservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.release() })
		if seen[p.number] {
			t.Fatalf("port %d was given twice", p.number)
		}
		seen[p.number] = true
	}
	p, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(p.number))
	if stranger, err := net.Listen("tcp", address); err == nil {
		_ = stranger.Close()
		t.Error("a stranger can listen on a reserved port")
	}
	expectServed(t, address)
	if err := p.release(); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("a released port is not free: %v", err)
	}
	_ = free.Close()
}

// expectServed listens the way the components do, and expects every connection to arrive there.
func expectServed(t *testing.T, address string) {
	t.Helper()
	sharing := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}); e != nil {
			return e
		}
		return err
	}}
	listener, err := sharing.Listen(context.Background(), "tcp", address)
	if err != nil {
		t.Fatalf("a component cannot listen on its reserved port: %v", err)
	}
	defer func() { _ = listener.Close() }()
	for range 50 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatalf("a connection did not reach the component: %v", err)
		}
		_ = c.Close()
	}
}
