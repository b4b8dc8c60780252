// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"context"
	"fmt"

	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
)

// simulateChange returns a simulation of a State after a Change. If Hosts are lost, it rebuilds
// templates first, and returns a note for each of them.
func simulateChange(ctx context.Context, settings operator.Settings, core *coreoptions.Options, after *State) (*simulation, []string, error) {
	sim, err := newSimulation(ctx, settings, core, after)
	if err != nil || len(after.lost) == 0 {
		return sim, nil, err
	}
	notes := after.rebuildTemplates(sim.inventory.View())
	if len(notes) == 0 {
		return sim, nil, nil
	}
	sim, err = newSimulation(ctx, settings, core, after)
	return sim, notes, err
}

// rebuildTemplates does what the controller does with the Templates of ProxmoxTemplates on
// shared storages whose Hosts are offline: it builds them on other Hosts. It returns a note
// for each.
func (s *State) rebuildTemplates(view inventory.View) (notes []string) {
	var classes []v1alpha1.ProxmoxNodeClass
	for _, object := range s.Objects {
		if class, ok := object.(*v1alpha1.ProxmoxNodeClass); ok {
			classes = append(classes, *class)
		}
	}
	for _, object := range s.Objects {
		t, ok := object.(*v1alpha1.ProxmoxTemplate)
		if !ok {
			continue
		}
		for _, r := range template.NewRollout(view, s.KubeCluster, template.NewDesired(t, classes)).Relocations() {
			// It keeps the VMID, so the zones in the status need no update.
			region := r.To.Region
			s.Snapshots[region] = s.Snapshots[region].WithGuestOn(r.Offline.VMID, r.To.Host)
			notes = append(notes, fmt.Sprintf("ProxmoxTemplate %s on storage %s is built again on host %s/%s, because host %s/%s is offline; VMs that are cloned from it are created after that",
				t.Name, r.To.Storage, region, r.To.Host, region, r.Offline.Host))
		}
	}
	return notes
}
