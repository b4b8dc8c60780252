// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/header"
)

const (
	// maxFrame is the size of QEMU's own packet buffer: a longer frame is an error.
	maxFrame = 4096 + 65536
	// queueLength is the number of frames that wait for a port; further ones are
	// dropped, so a guest that does not read does not delay the others.
	queueLength = 4096
)

type mac [header.EthernetAddressSize]byte

// segment is one Ethernet: a learning switch with a gateway.
type segment struct {
	name, path string
	network    *Network
	gateway    *gateway

	mu    sync.RWMutex
	ports map[*port]struct{}
	table map[mac]*port // where a source address was last seen
}

// port is a connection to the switch.
type port struct {
	frames chan []byte
}

func newSegment(n *Network, name, path string, config Bridge) (*segment, error) {
	s := &segment{name: name, path: path, network: n, ports: map[*port]struct{}{}, table: map[mac]*port{}}
	var lc net.ListenConfig
	l, err := lc.Listen(n.ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if s.gateway, err = newGateway(s, config); err != nil {
		_ = l.Close()
		return nil, err
	}
	n.tasks.Go(func() { n.serve(l, s.attach) }) // the caller holds n.mu
	return s, nil
}

func (s *segment) addPort() *port {
	p := &port{frames: make(chan []byte, queueLength)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports[p] = struct{}{}
	return p
}

func (s *segment) removePort(p *port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ports, p)
	maps.DeleteFunc(s.table, func(_ mac, at *port) bool { return at == p })
}

// isConnected reports whether a guest that is connected has sent from address m.
func (s *segment) isConnected(m mac) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.table[m] != nil
}

// deliver learns the source address of a frame and queues the frame for the port of
// its destination, or for all other ports. The frame is not changed afterward.
func (s *segment) deliver(from *port, frame []byte) {
	if len(frame) < header.EthernetMinimumSize {
		return
	}
	to, source := mac(frame[0:6]), mac(frame[6:12])
	s.learn(source, from)
	s.mu.RLock()
	defer s.mu.RUnlock()
	if p := s.table[to]; p != nil { // never a group address: they are not learned
		if p != from {
			p.queue(frame)
		}
		return
	}
	for p := range s.ports {
		if p != from {
			p.queue(frame)
		}
	}
}

func (s *segment) learn(source mac, from *port) {
	if source[0]&1 != 0 { // a group address
		return
	}
	s.mu.RLock()
	known := s.table[source] == from
	s.mu.RUnlock()
	if known {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.ports[from]; ok {
		s.table[source] = from
	}
}

func (p *port) queue(frame []byte) {
	select {
	case p.frames <- frame:
	default:
	}
}

// attach connects a QEMU network card until QEMU disconnects.
func (s *segment) attach(conn net.Conn) {
	ctx, cancel := context.WithCancel(s.network.ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	p := s.addPort()
	defer s.removePort(p)
	s.network.start(func() {
		defer cancel()
		writeFrames(ctx, conn, p.frames)
	})
	r := bufio.NewReaderSize(conn, maxFrame)
	for {
		frame, err := readFrame(r)
		if err != nil {
			if !errors.Is(err, io.EOF) && ctx.Err() == nil {
				s.network.opts.Log.Info("network card disconnected", "network", s.name, "error", err.Error())
			}
			return
		}
		s.deliver(p, frame)
	}
}

// readFrame reads a frame with its length before it. It returns io.EOF at the end of
// the stream between frames.
func readFrame(r io.Reader) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > maxFrame {
		return nil, fmt.Errorf("frame length: found %d, want at most %d", n, maxFrame)
	}
	frame := make([]byte, n)
	if k, err := io.ReadFull(r, frame); err != nil {
		return nil, fmt.Errorf("connection ended after %d of %d bytes of a frame", k, n)
	}
	return frame, nil
}

// writeFrames writes frames with their length until ctx is done or the connection
// fails.
func writeFrames(ctx context.Context, conn net.Conn, frames <-chan []byte) {
	w := bufio.NewWriterSize(conn, maxFrame)
	for {
		select {
		case <-ctx.Done():
			return
		case frame := <-frames:
			var length [4]byte
			binary.BigEndian.PutUint32(length[:], uint32(len(frame))) //nolint:gosec // at most maxFrame
			_, _ = w.Write(length[:])                                 // the writer keeps its first error
			_, _ = w.Write(frame)
			if len(frames) > 0 {
				continue
			}
			if err := w.Flush(); err != nil {
				return
			}
		}
	}
}
