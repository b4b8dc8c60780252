// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

const (
	broadcast = "\xff\xff\xff\xff\xff\xff"
	multicast = "\x33\x33\x00\x00\x00\x01"
	addressA  = "\xbc\x24\x11\x00\x00\x0a"
	addressB  = "\xbc\x24\x11\x00\x00\x0b"
	addressC  = "\xbc\x24\x11\x00\x00\x0c"
)

func frame(to, from, payload string) []byte { return []byte(to + from + "\x88\xb5" + payload) }

// newSwitch returns an Ethernet without gateway.
func newSwitch(t *testing.T) *segment {
	t.Helper()
	return &segment{network: newNetwork(t, nil), ports: map[*port]struct{}{}, table: map[mac]*port{}}
}

// received returns the frames that wait for a port.
func received(p *port) (frames [][]byte) {
	for len(p.frames) > 0 {
		frames = append(frames, <-p.frames)
	}
	return frames
}

func TestSwitch(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	s := newSwitch(t)
	a, b, c := s.addPort(), s.addPort(), s.addPort()
	s.deliver(b, frame(addressB, addressB, "for the sender itself"))
	s.deliver(c, frame(addressC, addressC, "for the sender itself"))

	toAll, toGroup, unknown := frame(broadcast, addressA, "x"), frame(multicast, addressA, "x"), frame("\x02\x00\x00\x00\x00\xee", addressA, "x")
	toB, fromGroup := frame(addressB, addressA, "x"), frame(addressC, multicast, "x")
	for _, f := range [][]byte{toAll, toGroup, unknown, toB, []byte("short"), {}, fromGroup, toGroup} {
		s.deliver(a, f)
	}
	g.Expect(received(a)).To(BeEmpty())
	g.Expect(received(b)).To(Equal([][]byte{toAll, toGroup, unknown, toB, toGroup}))
	g.Expect(received(c)).To(Equal([][]byte{toAll, toGroup, unknown, fromGroup, toGroup}))

	// An address moves to the port that sends from it: a guest that was migrated.
	s.deliver(c, frame(addressA, addressB, "moved"))
	s.deliver(a, toB)
	g.Expect(received(b)).To(BeEmpty())
	g.Expect(received(c)).To(Equal([][]byte{toB}))
}

// TestSwitchFailures checks that the card of one guest does not affect the others, and that it can connect again.
func TestSwitchFailures(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		data               string
		disconnects, flood bool
	}{
		"ends_between_frames": {},
		"ends_in_mid_length":  {data: "\x00\x00"},
		"ends_after_length":   {data: "\x00\x00\x00\x40"},
		"ends_in_mid_frame":   {data: "\x00\x00\x00\x40" + broadcast},
		"oversized_frame":     {data: string(binary.BigEndian.AppendUint32(nil, maxFrame+1)), disconnects: true},
		"maximum_length":      {data: "\xff\xff\xff\xff", disconnects: true},
		"does_not_read":       {flood: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			s := newSwitch(t)
			a, b := s.addPort(), s.addPort()
			jumbo := frame(broadcast, addressC, string(make([]byte, 65000)))
			connect := func() net.Conn {
				local, conn := net.Pipe()
				_ = local.SetDeadline(time.Now().Add(timeout))
				s.network.start(func() { s.attach(conn) })
				g.Expect((&card{conn: local}).send(jumbo)).To(Succeed())
				g.Eventually(b.frames, timeout).Should(Receive(Equal(jumbo)))
				return local
			}
			broken := connect()
			g.Expect(io.WriteString(broken, test.data)).Error().NotTo(HaveOccurred())
			switch {
			case test.flood:
				for range 2 * queueLength {
					s.deliver(a, frame(addressC, addressA, "flood"))
				}
			case test.disconnects:
				g.Expect(io.Copy(io.Discard, broken)).Error().NotTo(HaveOccurred())
			default:
				g.Expect(broken.Close()).To(Succeed())
			}
			toAll, toC := frame(broadcast, addressA, "x"), frame(addressC, addressA, string(make([]byte, 65000)))
			s.deliver(a, toAll)
			g.Eventually(b.frames, timeout).Should(Receive(Equal(toAll)))
			again := connect()
			s.deliver(a, toC)
			g.Expect(readFrame(again)).To(Equal(toC))
		})
	}
}
