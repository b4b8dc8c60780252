// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	deprovisioning "sigs.k8s.io/karpenter/pkg/controllers/static/deprovisioning"
	coreoptions "sigs.k8s.io/karpenter/pkg/operator/options"
	nodepoolutils "sigs.k8s.io/karpenter/pkg/utils/nodepool"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// scaleStatic does what core does with static NodePools: it launches their missing Nodes, and
// deletes those that exceed spec.replicas.
func (p *planner) scaleStatic() error {
	pools, err := nodepoolutils.ListManaged(p.ctx, p.kube, p.provider)
	if err != nil {
		return fmt.Errorf("listing NodePools: %w", err)
	}
	pools = slices.DeleteFunc(pools, func(pool *karpv1.NodePool) bool { return pool.Spec.Replicas == nil || !pool.DeletionTimestamp.IsZero() })
	// Those with too many Nodes are first: the others can use the capacity that they free.
	slices.SortFunc(pools, func(a, b *karpv1.NodePool) int {
		return cmp.Or(cmp.Compare(min(p.missing(a), 0), min(p.missing(b), 0)), cmp.Compare(a.Name, b.Name))
	})
	for _, pool := range pools {
		missing := p.missing(pool)
		var err error
		switch {
		case missing != 0 && !coreoptions.FromContext(p.ctx).FeatureGates.StaticCapacity:
			p.noteMissing(pool, "the feature gate StaticCapacity is off")
		case missing > 0:
			err = p.launchMissing(pool, missing)
		case missing < 0:
			err = p.deleteExcess(pool)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// missing returns how many Nodes a static NodePool has too few; negative if it has too many.
func (p *planner) missing(pool *karpv1.NodePool) int64 {
	active, _, _ := p.cluster.NodePoolState.GetNodeCount(pool.Name)
	return *pool.Spec.Replicas - int64(active)
}

// noteMissing adds a note about a static NodePool that does not get its replicas.
func (p *planner) noteMissing(pool *karpv1.NodePool, cause string) {
	active, _, _ := p.cluster.NodePoolState.GetNodeCount(pool.Name)
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("static nodepool %s has %d of %d nodes: %s", pool.Name, active, *pool.Spec.Replicas, cause))
}

// launchMissing adds Nodes to a static NodePool. It adds a note if it does not get all of them.
func (p *planner) launchMissing(pool *karpv1.NodePool, missing int64) error {
	if ready := pool.StatusConditions().Root(); !ready.IsTrue() {
		p.noteMissing(pool, "it is not ready: "+ready.Message)
		return nil
	}
	limit, limited := pool.Spec.Limits[resources.Node]
	for range missing {
		active, deleting, _ := p.cluster.NodePoolState.GetNodeCount(pool.Name)
		if limited && int64(active+deleting) >= limit.Value() {
			p.noteMissing(pool, "it is at limits.nodes")
			return nil
		}
		node, err := p.launchStatic(pool)
		if err != nil {
			return err
		}
		if node == "" {
			p.noteMissing(pool, "the others wait for capacity: "+p.refusal(pool))
			return nil
		}
	}
	return nil
}

// deleteExcess deletes the Nodes of a static NodePool that core selects.
func (p *planner) deleteExcess(pool *karpv1.NodePool) error {
	vms, err := p.listVMs()
	if err != nil {
		return err
	}
	if _, err := deprovisioning.NewController(p.kube, p.cluster, p.provider, instantClock{}, p.recorder).Reconcile(p.ctx, pool); err != nil {
		return err
	}
	for _, vm := range vms {
		claim := &karpv1.NodeClaim{}
		err := p.kube.Get(p.ctx, client.ObjectKeyFromObject(vm.claim), claim)
		if client.IgnoreNotFound(err) != nil {
			return err
		}
		isDeleted := apierrors.IsNotFound(err) || !claim.DeletionTimestamp.IsZero()
		if !isDeleted || !vm.claim.DeletionTimestamp.IsZero() {
			continue
		}
		vm.Reason = fmt.Sprintf("spec.replicas is %d", *pool.Spec.Replicas)
		if err := p.deleteVM(vm); err != nil {
			return err
		}
	}
	return nil
}
