// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu/network"
)

const (
	broadcast = "\xff\xff\xff\xff\xff\xff"
	multicast = "\x33\x33\x00\x00\x00\x01"
	addressA  = "\xbc\x24\x11\x00\x00\x0a"
	addressB  = "\xbc\x24\x11\x00\x00\x0b"
	addressC  = "\xbc\x24\x11\x00\x00\x0c"

	typeExperimental, typeARP = "\x88\xb5", "\x08\x06" // EtherTypes
)

func frame(to, payload string) []byte { return []byte(to + addressA + typeExperimental + payload) }

// quiet returns a Network whose gateways send nothing by themselves.
func quiet(t *testing.T) *network.Network {
	b := network.Bridge{Gateway4: netip.MustParsePrefix("10.0.0.1/24")}
	return newNetwork(t, map[string]network.Bridge{"vmbr0": b, "vmbr0.10": b, "vmbr0.20": b, "vmbr1": b})
}

// attach returns a card whose address the switch knows: the gateway has sent it a reply.
func attach(t *testing.T, n *network.Network, bridge string, vlan int, address string) *card {
	t.Helper()
	c := newCard(t, n, bridge, vlan)
	_ = c.conn.SetReadDeadline(time.Now().Add(timeout))
	const request, reply = "\x00\x01\x08\x00\x06\x04\x00\x01", "\x00\x01\x08\x00\x06\x04\x00\x02"
	sendAll(t, c, []byte(broadcast+address+typeARP+request+address+"\x0a\x00\x00\x02"+"\x00\x00\x00\x00\x00\x00"+"\x0a\x00\x00\x01"))
	for {
		f, err := c.receive()
		NewWithT(t).Expect(err).NotTo(HaveOccurred())
		if bytes.HasPrefix(f, []byte(address)) && string(f[12:22]) == typeARP+reply {
			return c
		}
	}
}

func sendAll(t *testing.T, c *card, frames ...[]byte) {
	t.Helper()
	for _, f := range frames {
		NewWithT(t).Expect(c.send(f)).To(Succeed())
	}
}

// expect checks that these are the next frames of the test that the card receives.
func expect(t *testing.T, c *card, frames ...[]byte) {
	t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(timeout))
	for _, want := range frames {
		var got []byte
		for len(got) < 14 || string(got[12:14]) != typeExperimental {
			var err error
			if got, err = c.receive(); err != nil {
				t.Fatal(err)
			}
		}
		NewWithT(t).Expect(got).To(Equal(want), "received frame")
	}
}

// expectDisconnect checks that the switch ends the connection.
func expectDisconnect(t *testing.T, c *card) {
	t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(timeout))
	_, err := io.Copy(io.Discard, c.r)
	NewWithT(t).Expect(errors.Is(err, os.ErrDeadlineExceeded)).To(BeFalse(), "the card is still connected")
}

func TestSwitch(t *testing.T) {
	t.Parallel()
	n := quiet(t)
	a, b, c := attach(t, n, "vmbr0", 0, addressA), attach(t, n, "vmbr0", 0, addressB), attach(t, n, "vmbr0", 0, addressC)

	toAll, toGroup := frame(broadcast, "broadcast"), frame(multicast, "multicast")
	unknown := frame("\x02\x00\x00\x00\x00\xee", "unknown")
	sendAll(t, a, toAll, toGroup, unknown)
	expect(t, b, toAll, toGroup, unknown)
	expect(t, c, toAll, toGroup, unknown)

	// C does not receive what is for B, and nobody receives what is too short or for
	// the sender itself.
	toB, end := frame(addressB, "unicast"), frame(broadcast, "end")
	sendAll(t, a, toB, []byte("short"), []byte{}, frame(addressA, "self"), end)
	expect(t, b, toB, end)
	expect(t, c, end)

	jumbo := frame(addressB, string(make([]byte, 65000)))
	sendAll(t, a, jumbo)
	expect(t, b, jumbo)

	// An address moves to the port that sends from it: a guest that was migrated.
	moved := attach(t, n, "vmbr0", 0, addressB)
	sendAll(t, a, toB, end)
	expect(t, moved, toB, end)
	expect(t, b, end)
}

func TestSwitchSeparates(t *testing.T) {
	t.Parallel()
	n := quiet(t)
	// The same addresses exist on each network.
	type pair struct{ a, b *card }
	var pairs []pair
	for _, network := range []struct {
		bridge string
		vlan   int
	}{{"vmbr0", 0}, {"vmbr0", 10}, {"vmbr0", 20}, {"vmbr1", 0}} {
		pairs = append(pairs, pair{attach(t, n, network.bridge, network.vlan, addressA), attach(t, n, network.bridge, network.vlan, addressB)})
	}
	for i, p := range pairs {
		toAll, toB := frame(broadcast, string(rune('0'+i))), frame(addressB, string(rune('0'+i)))
		sendAll(t, p.a, toAll, toB)
		expect(t, p.b, toAll, toB) // nothing of the networks before
	}
}

func TestSwitchFailures(t *testing.T) {
	t.Parallel()
	write := func(c *card, data string) { _, _ = c.conn.Write([]byte(data)) }
	for name, fail := range map[string]func(t *testing.T, a, broken *card){
		"ends_between_frames": func(_ *testing.T, _, broken *card) { _ = broken.conn.Close() },
		"ends_in_mid_length": func(_ *testing.T, _, broken *card) {
			write(broken, "\x00\x00")
			_ = broken.conn.Close()
		},
		"ends_after_length": func(_ *testing.T, _, broken *card) {
			write(broken, "\x00\x00\x00\x40")
			_ = broken.conn.Close()
		},
		"ends_in_mid_frame": func(_ *testing.T, _, broken *card) {
			write(broken, "\x00\x00\x00\x40"+broadcast)
			_ = broken.conn.Close()
		},
		"oversized_frame": func(t *testing.T, _, broken *card) {
			write(broken, string(binary.BigEndian.AppendUint32(nil, 65536+4096+1)))
			expectDisconnect(t, broken)
		},
		"maximum_length": func(t *testing.T, _, broken *card) {
			write(broken, "\xff\xff\xff\xff")
			expectDisconnect(t, broken)
		},
		"does_not_read": func(t *testing.T, a, _ *card) {
			for range 10_000 { // more than all queues on the way
				sendAll(t, a, frame(addressC, string(make([]byte, 1400))))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := quiet(t)
			a, b, broken := attach(t, n, "vmbr0", 0, addressA), attach(t, n, "vmbr0", 0, addressB), attach(t, n, "vmbr0", 0, addressC)
			fail(t, a, broken)
			toAll, toB := frame(broadcast, "broadcast"), frame(addressB, "unicast")
			sendAll(t, a, toAll, toB)
			expect(t, b, toAll, toB)
			c := attach(t, n, "vmbr0", 0, addressC)
			toC := frame(addressC, "unicast")
			sendAll(t, a, toC)
			expect(t, c, toC)
		})
	}
}
