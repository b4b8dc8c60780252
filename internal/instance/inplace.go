// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// UpdateInPlace brings a running VM to its NodeClass's tags, security groups and
// pool, and notes that on the Claim. The list is closed: CPU, memory or disk are
// never changed, since core's view of the Node would lie.
func (p *Provider) UpdateInPlace(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return err
	}
	ctx, release, ok := p.guard.launch(ctx, string(claim.UID))
	if !ok {
		return ErrClaimBusy
	}
	defer release()
	vm, err := p.ownedBy(ctx, id, claim)
	if err != nil {
		return err
	}
	client := p.Clients[vm.Region]
	guest, _ := p.Inventory.View().Guest(vm.Region, vm.VMID)
	if err := updateTags(ctx, client, vm, class.Spec.Tags); err != nil {
		return err
	}
	if err := updateFirewall(ctx, client, vm, class.Spec.SecurityGroups); err != nil {
		return err
	}
	// Only out of the pool that we put it in: another one is an admin's choice. Without
	// Pool.Audit no pool is shown; then the move itself says what is lacking.
	if from := poolOf(claim); (guest.Pool == from || guest.Pool == "") && from != class.Spec.ResourcePool {
		if err := client.MoveToPool(ctx, vm.VMID, from, class.Spec.ResourcePool); err != nil {
			return err
		}
	}
	return annotate(ctx, p.Kube, claim, map[string]string{
		v1alpha1.AnnotationInPlaceUpdateHash: class.InPlaceHash(),
		v1alpha1.AnnotationResourcePool:      class.Spec.ResourcePool,
	})
}

// poolOf is the pool that we put a Claim's VM into.
func poolOf(claim *karpv1.NodeClaim) string {
	if pool, ok := claim.Annotations[v1alpha1.AnnotationResourcePool]; ok {
		return pool
	}
	in, _, err := ReadIntent(claim)
	if err != nil {
		return ""
	}
	return in.Pool
}

func updateTags(ctx context.Context, client proxmox.Client, vm VM, tags []string) error {
	want := make([]string, 0, len(tags))
	for _, tag := range tags {
		want = append(want, strings.ToLower(tag))
	}
	slices.Sort(want)
	want = slices.Compact(want)
	have := slices.Sorted(slices.Values(vm.config.Tags()))
	if slices.Equal(want, have) {
		return nil
	}
	change := proxmox.ConfigChange{Set: map[string]string{"tags": strings.Join(want, ";")}}
	if len(want) == 0 {
		change = proxmox.ConfigChange{Delete: []string{"tags"}}
	}
	return client.UpdateVM(ctx, vm.Host, vm.VMID, change)
}

// updateFirewall sets the rules first and then the bridge: a NIC that is put
// behind the firewall before its rules stand is cut off.
func updateFirewall(ctx context.Context, client proxmox.Client, vm VM, groups []v1alpha1.SecurityGroup) error {
	rules := firewallRules(groups)
	if err := client.SetFirewall(ctx, vm.Host, vm.VMID, rules); err != nil {
		return err
	}
	set := map[string]string{}
	for _, rule := range rules {
		nics := vm.config.NICs()
		i := slices.IndexFunc(nics, func(nic proxmox.NIC) bool { return nic.Slot == rule.Interface })
		if i < 0 {
			return fmt.Errorf("a security group names interface %s, but VM %d has none of that name", rule.Interface, vm.VMID)
		}
		if nic := nics[i]; !nic.Firewall {
			nic.Firewall = true
			set[nic.Slot] = nic.Encode()
		}
	}
	if len(set) == 0 {
		return nil
	}
	return client.UpdateVM(ctx, vm.Host, vm.VMID, proxmox.ConfigChange{Set: set})
}

func firewallRules(groups []v1alpha1.SecurityGroup) []proxmox.SecurityGroupRule {
	rules := make([]proxmox.SecurityGroupRule, 0, len(groups))
	for _, group := range groups {
		rules = append(rules, proxmox.SecurityGroupRule{Group: group.Name, Interface: group.Interface})
	}
	return rules
}
