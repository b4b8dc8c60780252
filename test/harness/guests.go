// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
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

// PodNetwork is a simple pod network for real guests: each Node has a subnet for its pods and
// routes to those of the other Nodes. It does what the DaemonSet of a CNI plugin does.
type PodNetwork struct {
	guests *Guests
	nodes  map[int]podNode // by VMID
	next   int
}

// podNode is a member of the pod network.
type podNode struct{ address, subnet string }

// defaultRoute is the destination of all addresses of the family of the node.
func (n podNode) defaultRoute() string {
	if strings.Contains(n.address, ":") {
		return "::/0"
	}
	return "0.0.0.0/0"
}

// NewPodNetwork returns a pod network without Nodes.
func NewPodNetwork(guests *Guests) *PodNetwork {
	return &PodNetwork{guests: guests, nodes: map[int]podNode{}}
}

// installPlugin installs a plugin under a name that exists only in /opt/cni/bin, where CNI
// DaemonSets install theirs, and writes its configuration. Without a route in it, pods reach only
// those of their own Node.
const installPlugin = `cp "$(ls /opt/cni/bin/ptp /usr/lib/cni/ptp 2>/dev/null | head -n1)" /opt/cni/bin/pod-ptp
mkdir -p /etc/cni/net.d
cat > /etc/cni/net.d/10-pods.conflist <<'EOF'
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "pod-ptp", "ipam": {"type": "host-local", "subnet": "SUBNET", "routes": [{"dst": "ROUTE"}]}}]}
EOF
`

// Add installs the pod network on the Node of a VM, and the routes between it and the others.
// Pods have the address family of the Node's address.
func (p *PodNetwork) Add(ctx context.Context, vmid int, address string) error {
	node := podNode{address: address, subnet: fmt.Sprintf("10.244.%d.0/24", p.next)}
	if strings.Contains(address, ":") {
		node.subnet = fmt.Sprintf("fd10:244:%d::/64", p.next)
	}
	script := strings.NewReplacer("SUBNET", node.subnet, "ROUTE", node.defaultRoute()).Replace(installPlugin)
	for other, n := range p.nodes {
		script += fmt.Sprintf("ip route replace %s via %s\n", n.subnet, n.address)
		if err := p.run(ctx, other, fmt.Sprintf("ip route replace %s via %s", node.subnet, node.address)); err != nil {
			return err
		}
	}
	if err := p.run(ctx, vmid, script); err != nil {
		return err
	}
	p.next++
	p.nodes[vmid] = node
	return nil
}

// Remove removes the Node of a VM that was deleted.
func (p *PodNetwork) Remove(vmid int) { delete(p.nodes, vmid) }

func (p *PodNetwork) run(ctx context.Context, vmid int, script string) error {
	if _, err := p.guests.Exec(ctx, vmid, "/bin/sh", "-ec", script); err != nil {
		return fmt.Errorf("configuring pod network: %w", err)
	}
	return nil
}
