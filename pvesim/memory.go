// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package pvesim

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// firstPort is the port of the first listener in memory.
const firstPort = 8006

// MemoryNetwork connects clients to listeners without sockets. In a bubble of testing/synctest, its connections do not
// keep the fake clock from advancing, unlike sockets. The zero value is ready to use.
type MemoryNetwork struct {
	mu        sync.Mutex
	listeners map[string]*memoryListener // by address
}

// Listen opens a listener on 127.0.0.1, on the next port. No socket listens there.
func (n *MemoryNetwork) Listen() net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[string]*memoryListener{}
	}
	l := &memoryListener{
		address: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: firstPort + len(n.listeners)},
		accept:  make(chan net.Conn), closed: make(chan struct{}),
	}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	n.listeners[l.address.String()] = l
	return l
}

// DialContext connects to the address of a listener, for http.Transport. Without a listener, the connection is refused.
func (n *MemoryNetwork) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[address]
	n.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	if l == nil {
		return nil, refused
	}
	client, server := newMemoryPipe()
	select {
	case l.accept <- server:
		return client, nil
	case <-l.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// DialContext connects to an address of the simulator, for http.Transport. It needs Options.InMemory.
func (s *Simulator) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return s.memory.DialContext(ctx, network, address)
}

// memoryListener accepts connections of a memory network.
type memoryListener struct {
	address net.Addr
	accept  chan net.Conn
	closed  chan struct{}
	close   func()
}

// Accept waits for the next connection.
func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close refuses further connections.
func (l *memoryListener) Close() error {
	l.close()
	return nil
}

// Addr returns the address.
func (l *memoryListener) Addr() net.Addr { return l.address }

// newMemoryPipe returns the two ends of a connection. Unlike those of net.Pipe, writes do not wait for the reader, as with
// sockets: otherwise two ends that close a TLS connection at the same time would wait for each other.
func newMemoryPipe() (client, server net.Conn) {
	a, b := newStream(), newStream()
	return &memoryConn{in: a, out: b}, &memoryConn{in: b, out: a}
}

// memoryConn is one end of a connection in memory.
type memoryConn struct{ in, out *stream }

// Read reads what the other end wrote. It returns io.EOF after the other end was closed.
func (c *memoryConn) Read(p []byte) (int, error) { return c.in.read(p) }

// Write writes to the other end. It fails if either end is closed.
func (c *memoryConn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close closes both directions. The other end can still read what was written before.
func (c *memoryConn) Close() error {
	c.out.change(func(s *stream) { s.ended = true })
	c.in.change(func(s *stream) { s.ended, s.abandoned = true, true })
	return nil
}

// LocalAddr returns an address that is the same for all connections.
func (c *memoryConn) LocalAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// RemoteAddr returns an address that is the same for all connections.
func (c *memoryConn) RemoteAddr() net.Addr { return c.LocalAddr() }

// SetDeadline sets the deadline of reads.
func (c *memoryConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline sets when reads fail, also those that wait already.
func (c *memoryConn) SetReadDeadline(t time.Time) error {
	c.in.change(func(s *stream) { s.deadline = t })
	return nil
}

// SetWriteDeadline has no effect, because writes do not wait.
func (c *memoryConn) SetWriteDeadline(time.Time) error { return nil }

// stream is one direction of a connection.
type stream struct {
	mu        sync.Mutex
	data      []byte
	deadline  time.Time // of reads
	ended     bool      // no more data follows
	abandoned bool      // the reader has closed its end
	changed   chan struct{}
}

func newStream() *stream { return &stream{changed: make(chan struct{})} }

// change changes the stream and wakes its reader.
func (s *stream) change(f func(s *stream)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) write(p []byte) (n int, err error) {
	s.change(func(s *stream) {
		if s.ended {
			err = syscall.EPIPE
			return
		}
		s.data = append(s.data, p...)
		n = len(p)
	})
	return n, err
}

func (s *stream) read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.abandoned:
			return 0, net.ErrClosed
		case !s.deadline.IsZero() && !time.Now().Before(s.deadline):
			return 0, os.ErrDeadlineExceeded
		case len(s.data) > 0:
			n := copy(p, s.data)
			s.data = s.data[n:]
			return n, nil
		case s.ended:
			return 0, io.EOF
		}
		s.wait()
	}
}

// wait waits for a change or the deadline of reads. The caller holds the mutex.
func (s *stream) wait() {
	changed := s.changed
	var expired <-chan time.Time
	if !s.deadline.IsZero() {
		timer := time.NewTimer(time.Until(s.deadline))
		defer timer.Stop()
		expired = timer.C
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-changed:
	case <-expired:
	}
}
