// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package terminatefirst

import (
	"context"

	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/disruption"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/scheduler"
)

// noCapacity is the reason in core's metric of terminate-first decisions.
const noCapacity disruption.TerminateFirstReason = "no-capacity"

// simulator runs core's scheduler with the current offerings, or with those after the
// deletion of a VM.
type simulator struct {
	deps          Deps
	cloudProvider corecloudprovider.CloudProvider
	scheduler     scheduler.Scheduler
}

func (c *Controller) newSimulator() *simulator {
	s := &simulator{deps: c.deps, cloudProvider: c.deps.CloudProvider(c.deps.Types)}
	s.scheduler = scheduler.New(s.deps.Deps, s.cloudProvider)
	return s
}

// newQueue returns a queue for one command. It is not core's own queue, which a provider
// cannot access: Nodes in that one are marked for deletion, so they are no candidates.
func (s *simulator) newQueue() *disruption.Queue {
	return disruption.NewQueue(s.deps.Kube, s.deps.Recorder, s.deps.Cluster, s.deps.Clock, s.scheduler.Provisioner)
}

// fixedView is a View that does not change.
type fixedView struct{ view inventory.View }

func (f fixedView) View() inventory.View { return f.view }

// simulate returns the command that deletes a Node; false if core can launch a replacement
// first, or if the Node's pods would not fit after its deletion.
func (s *simulator) simulate(ctx context.Context, candidate *disruption.Candidate) (*disruption.Command, bool, error) {
	id, err := v1alpha1.ParseProviderID(candidate.ProviderID())
	if err != nil {
		return nil, false, err
	}
	results, err := s.scheduler.Without(ctx, candidate)
	if err != nil || results.AllNonPendingPodsScheduled() {
		return nil, false, err
	}
	after := s.deps.Types.ForView(fixedView{s.deps.Inventory.View().Without(id.Region, id.VMID)})
	results, err = scheduler.New(s.deps.Deps, s.deps.CloudProvider(after)).Without(ctx, candidate)
	if err != nil || !results.AllNonPendingPodsScheduled() {
		return nil, false, err
	}
	return &disruption.Command{
		Method:     disruption.NewDrift(s.deps.Kube, s.deps.Cluster, s.scheduler.Provisioner, s.deps.Recorder, s.deps.Clock),
		Candidates: []*disruption.Candidate{candidate}, Results: results,
		CreationTimestamp: s.deps.Clock.Now(), TerminateFirstReason: noCapacity,
	}, true, nil
}
