// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

// Package network connects QEMU guests with each other and with this machine, in one
// process, without root, taps or namespaces.
//
// Each Proxmox bridge, and each VLAN of a bridge, is one Ethernet: a learning switch.
// QEMU connects a network card to it through a unix socket, whose path
// [Network.Socket] returns (QEMU 7.2 or later):
//
//	-netdev stream,id=net0,server=off,addr.type=unix,addr.path=PATH
//	-device virtio-net-pci,netdev=net0,mac=BC:24:11:00:00:01
//
// On this socket a 4-byte big-endian length precedes each frame. A card is attached
// for as long as QEMU is connected, and any number of cards share one socket.
//
// Each Ethernet has a gateway with an IPv4 and an IPv6 address, a user-space TCP/IP
// stack. It responds to ping, assigns addresses (DHCP, DHCPv6, SLAAC), answers DNS
// queries with NXDOMAIN, and forwards TCP connections from guests to its addresses to
// the same port of 127.0.0.1: a guest reaches the API server of a test at
// https://GATEWAY:PORT. All ports that listen on 127.0.0.1 are reachable, other hosts
// and networks are not. The gateway has no route to the pods of a guest: the guest must
// replace their addresses with its own, as CNI plugins do.
//
// In the opposite direction, [Network.Dial] connects to a port of a guest, and
// [Network.Forward] makes it available on this machine.
package network
