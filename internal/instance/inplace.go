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
	if err := updateFirewall(ctx, client, vm, class.Spec.SecurityGroups, p.inheritsFirewall(claim)); err != nil {
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

// updateFirewall sets the rules first and then puts NICs behind the firewall: before its
// rules stand, a NIC there is cut off. For the same reason NICs that lose their last
// group come out before the rules go.
func updateFirewall(ctx context.Context, client proxmox.Client, vm VM, groups []v1alpha1.SecurityGroup, inherited func(slot string) bool) error {
	rules := firewallRules(groups)
	in, out := map[string]string{}, map[string]string{}
	for _, nic := range vm.config.Network().NICs() {
		named := slices.ContainsFunc(rules, func(rule proxmox.SecurityGroupRule) bool { return rule.Interface == nic.Slot })
		switch {
		case named && !nic.Firewall:
			nic.Firewall = true
			in[nic.Slot] = nic.Encode()
		case !named && nic.Firewall && !inherited(nic.Slot):
			nic.Firewall = false
			out[nic.Slot] = nic.Encode()
		}
	}
	for _, rule := range rules {
		if _, ok := vm.config.Options[rule.Interface]; !ok {
			return fmt.Errorf("a security group names interface %s, but VM %d has none of that name", rule.Interface, vm.VMID)
		}
	}
	if len(out) > 0 {
		if err := client.UpdateVM(ctx, vm.Host, vm.VMID, proxmox.ConfigChange{Set: out}); err != nil {
			return err
		}
	}
	if err := client.SetFirewall(ctx, vm.Host, vm.VMID, rules); err != nil {
		return err
	}
	if len(in) == 0 {
		return nil
	}
	return client.UpdateVM(ctx, vm.Host, vm.VMID, proxmox.ConfigChange{Set: in})
}

// inheritsFirewall tells whether a Claim's VM has an interface behind the firewall
// because its Template has. Where the Template is not known any more, it may be so.
func (p *Provider) inheritsFirewall(claim *karpv1.NodeClaim) func(slot string) bool {
	in, ok, err := ReadIntent(claim)
	template, found := p.Inventory.View().Guest(in.Region, in.TemplateID)
	if err != nil || !ok || !found || template.Config == nil || !template.Config.IsTemplate() {
		return func(string) bool { return true }
	}
	return func(slot string) bool {
		return slices.ContainsFunc(template.Config.Network().NICs(), func(nic proxmox.NIC) bool { return nic.Slot == slot && nic.Firewall })
	}
}

// firewallRules are the groups, each once per interface.
func firewallRules(groups []v1alpha1.SecurityGroup) []proxmox.SecurityGroupRule {
	rules := make([]proxmox.SecurityGroupRule, 0, len(groups))
	for _, group := range groups {
		if rule := (proxmox.SecurityGroupRule{Group: group.Name, Interface: group.Interface}); !slices.Contains(rules, rule) {
			rules = append(rules, rule)
		}
	}
	return rules
}
