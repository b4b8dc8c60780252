// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// Forward forwards TCP connections to another address until it is closed.
type Forward struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	closed bool
	conns  []net.Conn
}

// StartForward listens on an address, which may have port 0, and forwards to target.
func StartForward(ctx context.Context, listen, target string) (*Forward, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("listening on %s to forward to %s: %w", listen, target, err)
	}
	f := &Forward{listener: listener, target: target}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go f.pass(conn)
		}
	}()
	return f, nil
}

// Address returns the address that it listens on.
func (f *Forward) Address() string { return f.listener.Addr().String() }

func (f *Forward) pass(in net.Conn) {
	out, err := (&net.Dialer{}).Dial("tcp", f.target)
	if err != nil {
		_ = in.Close()
		return
	}
	f.mu.Lock()
	f.conns = append(f.conns, in, out)
	closed := f.closed
	f.mu.Unlock()
	if closed {
		_, _ = in.Close(), out.Close()
		return
	}
	go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
	_, _ = io.Copy(in, out)
	_ = in.Close()
}

// Close stops listening and closes all connections.
func (f *Forward) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	_ = f.listener.Close()
	for _, conn := range f.conns {
		_ = conn.Close()
	}
	f.conns = nil
}
