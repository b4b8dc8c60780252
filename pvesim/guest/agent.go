// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// agent returns what qemu-guest-agent, which cloud images contain, reports about the guest.
func (g *guest) agent(s system) *pvesim.Agent {
	out := &pvesim.Agent{
		Hostname: s.hostname,
		OS:       map[string]string{"id": "ubuntu", "pretty-name": s.image, "version-id": "24.04"},
		Interfaces: []pvesim.AgentInterface{
			{Name: "lo", MAC: "00:00:00:00:00:00", Addresses: []string{"127.0.0.1/8"}},
		},
		ReadFile: g.readFile,
	}
	for i, mac := range g.macs {
		card := pvesim.AgentInterface{Name: fmt.Sprintf("eth%d", i), MAC: mac}
		for _, a := range s.addresses {
			if a.card == i {
				card.Addresses = append(card.Addresses, a.String())
			}
		}
		out.Interfaces = append(out.Interfaces, card)
	}
	return out
}

// cloudInitStatusFile is where cloud-init reports its progress. It is not on the disk.
const cloudInitStatusFile = "/run/cloud-init/status.json"

// cloudInitFinished is the content of the file after all stages have succeeded.
const cloudInitFinished = `{"v1": {"datasource": "DataSourceNoCloud [seed=/dev/sr0]", "stage": null,
 "init-local": {"errors": [], "finished": 4.1, "recoverable_errors": {}, "start": 3.5},
 "init": {"errors": [], "finished": 6.2, "recoverable_errors": {}, "start": 5.6},
 "modules-config": {"errors": [], "finished": 8.3, "recoverable_errors": {}, "start": 7.7},
 "modules-final": {"errors": [], "finished": 9.4, "recoverable_errors": {}, "start": 8.9}}}
`

// readFile returns a file of the guest, as the guest agent reads it.
func (g *guest) readFile(_ context.Context, name string) ([]byte, error) {
	if name == cloudInitStatusFile && g.cloudInitEnded {
		return []byte(cloudInitFinished), nil
	}
	if content, ok := g.storage.Read(name); ok {
		return content, nil
	}
	return nil, fs.ErrNotExist
}
