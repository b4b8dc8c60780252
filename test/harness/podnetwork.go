// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"fmt"
	"strings"
)

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
