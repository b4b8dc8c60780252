// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	corecloudprovider "sigs.k8s.io/karpenter/pkg/cloudprovider"
	corescheduling "sigs.k8s.io/karpenter/pkg/scheduling"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// VM is a VM of a NodeClaim.
type VM struct {
	// NodeClaim is empty for VMs that do not exist yet.
	NodeClaim    string  `json:"nodeClaim,omitempty"`
	NodePool     string  `json:"nodePool"`
	Region       string  `json:"region"`
	Host         string  `json:"host"`
	InstanceType string  `json:"instanceType"`
	CPUs         int     `json:"cpus"`
	MemoryBytes  int64   `json:"memoryBytes"`
	PricePerHour float64 `json:"pricePerHour"`
	// Pods are the pods that would run on a new VM.
	Pods []string `json:"pods,omitempty"`
	// Reason is why an existing VM is deleted.
	Reason string `json:"reason,omitempty"`

	claim *karpv1.NodeClaim
}

// listVMs returns the VMs of all NodeClaims that are launched, sorted by name.
func (s *simulation) listVMs() ([]VM, error) {
	claims := &karpv1.NodeClaimList{}
	if err := s.kube.List(s.ctx, claims); err != nil {
		return nil, err
	}
	types := map[string][]*corecloudprovider.InstanceType{}
	var out []VM
	for i := range claims.Items {
		claim := &claims.Items[i]
		id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
		if err != nil {
			continue // not launched, or of another provider
		}
		pool := claim.Labels[karpv1.NodePoolLabelKey]
		if _, ok := types[pool]; !ok {
			if types[pool], err = s.typesOf(pool); err != nil {
				return nil, err
			}
		}
		vm := VM{
			NodeClaim: claim.Name, NodePool: pool, Region: id.Region, Host: claim.Labels[corev1.LabelTopologyZone],
			InstanceType: claim.Labels[corev1.LabelInstanceTypeStable], claim: claim,
		}
		if guest, ok := s.inventory.View().Guest(id.Region, id.VMID); ok {
			vm.Host = guest.Host // it may have been migrated
		}
		if it, ok := s.catalog.Get(vm.InstanceType); ok {
			vm.CPUs, vm.MemoryBytes = it.CPUs, it.MemoryBytes
		}
		vm.PricePerHour = priceOf(types[pool], claim)
		out = append(out, vm)
	}
	slices.SortFunc(out, func(a, b VM) int { return cmp.Compare(a.NodeClaim, b.NodeClaim) })
	return out, nil
}

// typesOf returns the instance types of a NodePool; none if it does not exist.
func (s *simulation) typesOf(name string) ([]*corecloudprovider.InstanceType, error) {
	pool := &karpv1.NodePool{}
	if err := s.kube.Get(s.ctx, client.ObjectKey{Name: name}, pool); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	types, err := s.provider.GetInstanceTypes(s.ctx, pool)
	if client.IgnoreNotFound(err) != nil { // without its NodeClass, it has none
		return nil, fmt.Errorf("listing the instance types of NodePool %s: %w", name, err)
	}
	return types, nil
}

// priceOf returns the price of a NodeClaim's offering; 0 if it is not offered any more.
func priceOf(types []*corecloudprovider.InstanceType, claim *karpv1.NodeClaim) float64 {
	n := slices.IndexFunc(types, func(it *corecloudprovider.InstanceType) bool {
		return it.Name == claim.Labels[corev1.LabelInstanceTypeStable]
	})
	if n < 0 {
		return 0
	}
	offerings := types[n].Offerings.Compatible(corescheduling.NewLabelRequirements(claim.Labels))
	if len(offerings) == 0 {
		return 0
	}
	return offerings.Cheapest().Price
}
