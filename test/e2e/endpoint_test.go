// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// endpoint is an address of a Proxmox cluster. While it is stopped, connections are refused,
// as when pveproxy is down.
type endpoint struct {
	t       *testing.T
	address string
	target  string
	forward *harness.Forward
}

// newEndpoint returns a stopped endpoint of a simulated cluster.
func newEndpoint(t *testing.T, proxmox *harness.Proxmox) *endpoint {
	t.Helper()
	return newEndpointTo(t, proxmox.Host())
}

// newEndpointTo returns a stopped endpoint that forwards to target.
func newEndpointTo(t *testing.T, behind string) *endpoint {
	t.Helper()
	ports, err := harness.FreePorts(1)
	must(t, err)
	d := &endpoint{t: t, address: fmt.Sprintf("127.0.0.1:%d", ports[0]), target: behind}
	t.Cleanup(d.stop)
	return d
}

// configure returns the cluster's configuration with the endpoint's address.
func (d *endpoint) configure(c harness.Cluster) harness.Cluster {
	c.URLs = []string{"https://" + d.address}
	return c
}

func (d *endpoint) start() {
	d.t.Helper()
	var err error
	d.forward, err = harness.StartForward(d.t.Context(), d.address, d.target)
	must(d.t, err)
}

func (d *endpoint) stop() {
	if d.forward != nil {
		d.forward.Close()
	}
}
