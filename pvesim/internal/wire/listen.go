// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/tls"
	"net"
	"sync"
)

// Listener accepts TLS and plain connections on one port, as Proxmox does. The first byte determines which.
type Listener struct {
	net.Listener
	Config *tls.Config
}

// Accept returns a connection whose kind is determined by its first read.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &autoTLS{Conn: c, config: l.Config}, nil
}

const tlsHandshake = 0x16

type autoTLS struct {
	net.Conn
	config *tls.Config
	once   sync.Once
	mu     sync.Mutex
	inner  net.Conn
	plain  bool
}

// prefixed is a connection with the first byte already read.
type prefixed struct {
	net.Conn
	first []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.first) > 0 && len(b) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

func (c *autoTLS) decide() {
	c.once.Do(func() {
		first := make([]byte, 1)
		n, _ := c.Conn.Read(first) // the next read returns the error again
		under := &prefixed{Conn: c.Conn, first: first[:n]}
		c.mu.Lock()
		defer c.mu.Unlock()
		if n == 1 && first[0] != tlsHandshake {
			c.plain, c.inner = true, under
			return
		}
		c.inner = tls.Server(under, c.config)
	})
}

func (c *autoTLS) isPlain() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plain
}

func (c *autoTLS) current() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.inner
}

func (c *autoTLS) Read(b []byte) (int, error) {
	c.decide()
	return c.current().Read(b)
}

func (c *autoTLS) Write(b []byte) (int, error) {
	c.decide()
	return c.current().Write(b)
}

// Close closes the connection. After a handshake, it sends the TLS close notification.
func (c *autoTLS) Close() error {
	if inner := c.current(); inner != nil {
		return inner.Close()
	}
	return c.Conn.Close()
}
