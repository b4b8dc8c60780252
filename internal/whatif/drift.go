// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeclaimdisruption "sigs.k8s.io/karpenter/pkg/controllers/nodeclaim/disruption"
	"sigs.k8s.io/karpenter/pkg/controllers/nodepool/hash"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// replaceDrifted replaces the Nodes of affected classes and changed NodePools that core finds
// drifted, one after the other. It returns the last scheduling results.
func (p *planner) replaceDrifted(results scheduling.Results) (scheduling.Results, error) {
	drifted, err := p.driftedVMs()
	if err != nil {
		return results, err
	}
	for _, vm := range drifted {
		pool := &karpv1.NodePool{}
		if err := p.kube.Get(p.ctx, client.ObjectKey{Name: vm.NodePool}, pool); client.IgnoreNotFound(err) != nil {
			return results, err
		}
		replace := p.replaceDynamic
		if pool.Spec.Replicas != nil {
			replace = func(vm VM) error { return p.replaceStatic(vm, pool) }
		}
		if err := replace(vm); err != nil {
			return results, err
		}
		if results, err = p.settle(); err != nil {
			return results, err
		}
	}
	return results, nil
}

// replaceDynamic creates the Nodes that the pods of a drifted Node need, then deletes it. It
// adds a note instead if the pods would not fit.
func (p *planner) replaceDynamic(vm VM) error {
	p.cluster.MarkForDeletion(vm.claim.Status.ProviderID)
	trial, err := p.schedule()
	if err != nil {
		return err
	}
	if blocking := blockingPod(trial, vm.claim.Status.NodeName); blocking != nil {
		p.cluster.UnmarkForDeletion(vm.claim.Status.ProviderID)
		p.noteNotReplaced(vm, fmt.Sprintf("pod %s/%s would not fit: %s", blocking.Namespace, blocking.Name, p.reason(blocking, trial.PodErrors[blocking])))
		return nil
	}
	if _, err := p.settle(); err != nil {
		return err
	}
	return p.deleteVM(vm)
}

// deleteVM deletes a VM and releases its capacity.
func (p *planner) deleteVM(vm VM) error {
	p.plan.Delete = append(p.plan.Delete, vm)
	if err := p.evict(vm.claim.Status.NodeName, vm.claim); err != nil {
		return err
	}
	if id, err := v1alpha1.ParseProviderID(vm.claim.Status.ProviderID); err == nil {
		p.inventory.Ledger().ObserveDeleted(id.Region, id.VMID)
	}
	p.vms.Planner.Release(string(vm.claim.UID))
	return nil
}

func (p *planner) noteNotReplaced(vm VM, cause string) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf("nodeclaim %s is drifted (%s), but is not replaced, because %s", vm.NodeClaim, vm.Reason, cause))
}

// blockingPod returns the first pod of a Node that was not scheduled elsewhere; nil if all
// were.
func blockingPod(results scheduling.Results, node string) *corev1.Pod {
	var first *corev1.Pod
	for pod := range results.PodErrors {
		if pod.Spec.NodeName == node && (first == nil || client.ObjectKeyFromObject(pod).String() < client.ObjectKeyFromObject(first).String()) {
			first = pod
		}
	}
	return first
}

// driftedVMs returns the VMs of affected classes and changed NodePools that core finds drifted.
func (p *planner) driftedVMs() ([]VM, error) {
	changed := map[string]bool{}
	for _, object := range p.change.Objects {
		if o, ok := object.(*karpv1.NodePool); ok {
			changed[o.Name] = true
			pool := &karpv1.NodePool{}
			if err := p.kube.Get(p.ctx, client.ObjectKeyFromObject(o), pool); err != nil {
				return nil, err
			}
			if _, err := hash.NewController(p.kube, p.provider).Reconcile(p.ctx, pool); err != nil {
				return nil, err
			}
		}
	}
	vms, err := p.listVMs()
	if err != nil {
		return nil, err
	}
	var drifted []VM
	disruption := nodeclaimdisruption.NewController(instantClock{}, p.kube, p.provider)
	for _, vm := range vms {
		if !p.known[vm.claim.UID] || !p.affected[vm.claim.Spec.NodeClassRef.Name] && !changed[vm.NodePool] {
			continue
		}
		if types, err := p.typesOf(vm.NodePool); err != nil {
			return nil, err
		} else if len(types) == 0 {
			continue // core does not replace it; for example, its NodeClass does not exist
		}
		if _, err := disruption.Reconcile(p.ctx, vm.claim); err != nil {
			return nil, err
		}
		if condition := vm.claim.StatusConditions().Get(karpv1.ConditionTypeDrifted); condition.IsTrue() {
			vm.Reason = condition.Reason
			drifted = append(drifted, vm)
		}
	}
	return drifted, nil
}
