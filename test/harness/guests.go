// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu"
	vnet "github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/qemu/network"
)

// GuestOptions configure real guests.
type GuestOptions struct {
	// Images is the directory of the images that make guest-image builds.
	Images string
	// ConsoleDir is an existing directory for the logs of the serial consoles.
	ConsoleDir string
	// Bridges are the networks of the guests.
	Bridges map[string]vnet.Bridge
	// Log receives messages about guests that do not start.
	Log func(message string)
}

// Guests are real Linux guests under QEMU with their networks.
type Guests struct {
	*qemu.Runtime
	Network *vnet.Network

	options GuestOptions
}

// GuestImage is the image of the guests, in the directory of images.
const GuestImage = "debian-13.qcow2"

// NewGuests returns a runtime for real guests. It fails if QEMU or the image is missing. The caller passes it to
// StartProxmox, and closes it after the simulator.
func NewGuests(o GuestOptions) (*Guests, error) {
	g := &Guests{options: o}
	var err error
	if g.options.Images, err = filepath.Abs(o.Images); err != nil {
		return nil, fmt.Errorf("finding directory of images: %w", err)
	}
	if _, err := os.Stat(g.Image()); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image %s not found; make guest-image builds it", g.Image())
	}
	kernel := strings.TrimSuffix(g.Image(), ".qcow2") + ".vmlinuz"
	if _, err := os.Stat(kernel); err != nil {
		kernel = "" // without it, guests are emulated
	}
	g.Runtime, err = qemu.NewRuntime(qemu.Options{ConsoleDir: o.ConsoleDir, ProbeKernel: kernel, Log: o.Log})
	if err != nil {
		return nil, err
	}
	g.Network, err = vnet.New(vnet.Options{Dir: filepath.Join(g.Dir(), "net"), Bridges: o.Bridges})
	if err != nil {
		g.Close()
		return nil, err
	}
	g.SetNetwork(g.Network)
	return g, nil
}

// Image returns the path of the image of the guests.
func (g *Guests) Image() string { return filepath.Join(g.options.Images, GuestImage) }

// Close deletes all files of the guests.
func (g *Guests) Close() {
	if g.Network != nil {
		_ = g.Network.Close() // it is removed with the directory
	}
	g.Runtime.Close()
}

// Gateways returns the addresses at which guests reach this machine, for the certificate of the API server.
func (g *Guests) Gateways() []string {
	var out []string
	for _, b := range g.options.Bridges {
		for _, gateway := range []netip.Prefix{b.Gateway4, b.Gateway6} {
			if gateway.IsValid() {
				out = append(out, gateway.Addr().String())
			}
		}
	}
	return out
}

// Server returns the URL at which guests on a bridge reach the API server.
func (g *Guests) Server(plane *Plane, bridge string, ipv6 bool) (string, error) {
	server, err := url.Parse(plane.Server)
	if err != nil {
		return "", fmt.Errorf("parsing URL of the API server: %w", err)
	}
	gateway := g.options.Bridges[bridge].Gateway4
	if ipv6 {
		gateway = g.options.Bridges[bridge].Gateway6
	}
	if !gateway.IsValid() {
		return "", fmt.Errorf("bridge %s has no gateway (IPv6: %t)", bridge, ipv6)
	}
	return "https://" + net.JoinHostPort(gateway.Addr().String(), server.Port()), nil
}
