// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/vmconfig"
)

// Updater changes running VMs in place.
type Updater struct {
	deps Deps
	vms  *Provider
}

// NewUpdater returns an Updater.
func NewUpdater(deps Deps, vms *Provider) *Updater { return &Updater{deps, vms} }

// UpdateInPlace sets the tags, security groups, resource pool and HA of a running VM to
// those of its NodeClass, and records that on the Claim. CPU, memory and disk are never
// changed: core would have wrong capacities of the Node.
func (u *Updater) UpdateInPlace(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return err
	}
	ctx, release, ok := u.deps.Guard.AcquireLaunch(ctx, string(claim.UID))
	if !ok {
		return ErrClaimBusy
	}
	defer release()
	vm, err := u.vms.getOwned(ctx, id, claim)
	if err != nil {
		return err
	}
	in, _, err := ReadIntent(claim)
	if err != nil {
		in = Intent{} // of a newer controller
	}
	in.Region, in.Host, in.VMID, in.InstanceType = vm.Region, vm.Host, vm.VMID, claim.Labels[corev1.LabelInstanceTypeStable]
	tags, err := RenderTags(claim, class, in)
	if err != nil {
		return err
	}
	client := u.deps.Clients[vm.Region]
	if err := u.recordStep(ctx, claim, updating); err != nil {
		return err
	}
	if err := updateTags(ctx, client, vm, tags); err != nil {
		return err
	}
	if err := u.updateSecurityGroups(ctx, claim, vm, class.Spec.SecurityGroups); err != nil {
		return err
	}
	if err := u.updatePool(ctx, claim, vm, class.Spec.ResourcePool); err != nil {
		return err
	}
	ha := class.Spec.HighAvailability
	if err := u.updateHA(ctx, claim, vm, ha); err != nil {
		return err
	}
	applied := map[string]string{
		v1alpha1.AnnotationInPlaceUpdateHash: class.InPlaceHash(),
		v1alpha1.AnnotationResourcePool:      class.Spec.ResourcePool,
	}
	if ha != nil || AppliedHA(claim) != nil {
		applied[v1alpha1.AnnotationHighAvailability] = encodeHA(ha)
	}
	return Annotate(ctx, u.deps.Kube, claim, applied)
}

// Values of AnnotationInPlaceUpdateHash during an update. If it is interrupted, what it changed
// stays, so the next update is needed even if the class was changed back.
const (
	updating   = "updating"
	updatingHA = "updatingHA"
)

// recordStep records the step of an update, unless an earlier update was interrupted in a later one.
func (u *Updater) recordStep(ctx context.Context, claim *karpv1.NodeClaim, step string) error {
	if last := claim.Annotations[v1alpha1.AnnotationInPlaceUpdateHash]; last == step || last == updatingHA {
		return nil
	}
	return Annotate(ctx, u.deps.Kube, claim, map[string]string{v1alpha1.AnnotationInPlaceUpdateHash: step})
}

// updatePool moves a VM to another resource pool. If an administrator moved it, it stays there.
// Without Pool.Audit no pool is shown; then the move fails with the missing privilege.
func (u *Updater) updatePool(ctx context.Context, claim *karpv1.NodeClaim, vm VM, pool string) error {
	guest, _ := u.deps.Inventory.View().Guest(vm.Region, vm.VMID)
	from := resourcePool(claim)
	if from == pool || guest.Pool != from && guest.Pool != "" {
		return nil
	}
	if err := u.deps.Clients[vm.Region].MoveToPool(ctx, vm.VMID, from, pool); err != nil {
		return err
	}
	return Annotate(ctx, u.deps.Kube, claim, map[string]string{v1alpha1.AnnotationResourcePool: pool})
}

// updateHA applies the options of the class if they changed, or if an earlier change of them was
// interrupted. Otherwise, what an administrator changed stays.
func (u *Updater) updateHA(ctx context.Context, claim *karpv1.NodeClaim, vm VM, ha *v1alpha1.HighAvailability) error {
	if encodeHA(AppliedHA(claim)) == encodeHA(ha) && claim.Annotations[v1alpha1.AnnotationInPlaceUpdateHash] != updatingHA {
		return nil
	}
	if err := u.recordStep(ctx, claim, updatingHA); err != nil {
		return err
	}
	return u.deps.HA.Update(ctx, NewHAMember(claim, vm.Region, vm.VMID), ha, vm.HAState)
}

// resourcePool returns the resource pool that this controller put a Claim's VM into.
func resourcePool(claim *karpv1.NodeClaim) string {
	if pool, ok := claim.Annotations[v1alpha1.AnnotationResourcePool]; ok {
		return pool
	}
	in, _, err := ReadIntent(claim)
	if err != nil {
		return ""
	}
	return in.ResourcePool
}

// updateTags replaces the tags of a VM. A class without tags does not change them: they are those
// of the template or of an administrator.
func updateTags(ctx context.Context, client proxmox.Client, vm VM, tags []string) error {
	if len(tags) == 0 {
		return nil
	}
	desired := make([]string, 0, len(tags))
	for _, tag := range tags {
		desired = append(desired, strings.ToLower(tag))
	}
	slices.Sort(desired)
	desired = slices.Compact(desired)
	if slices.Equal(desired, slices.Sorted(slices.Values(vm.Config.Tags()))) {
		return nil
	}
	change := proxmox.ConfigChange{Set: map[string]string{"tags": strings.Join(desired, ";")}}
	return client.UpdateVM(ctx, vm.Host, vm.VMID, change)
}

// updateFirewall sets the rules before it puts NICs behind the firewall: without rules,
// a NIC there is cut off. For the same reason it takes NICs that lose their last group
// out before it removes the rules. NICs that an administrator put there stay.
func updateFirewall(ctx context.Context, client proxmox.Client, vm VM, groups []v1alpha1.SecurityGroup, inherited func(slot string) bool) error {
	rules := vmconfig.FirewallRules(groups)
	enable, disable := map[string]string{}, map[string]string{}
	for _, nic := range vm.Config.Network().NICs() {
		named := slices.ContainsFunc(rules, func(rule proxmox.SecurityGroupRule) bool { return rule.Interface == nic.Slot })
		switch {
		case named && !nic.Firewall:
			nic.Firewall = true
			enable[nic.Slot] = nic.Encode()
		case !named && nic.Firewall && !inherited(nic.Slot):
			nic.Firewall = false
			disable[nic.Slot] = nic.Encode()
		}
	}
	for _, rule := range rules {
		if _, ok := vm.Config.Options[rule.Interface]; !ok {
			return fmt.Errorf("a security group names interface %s, but VM %d has none of that name", rule.Interface, vm.VMID)
		}
	}
	if len(disable) > 0 {
		existing, err := client.SecurityGroupRules(ctx, vm.Host, vm.VMID)
		if err != nil {
			return err
		}
		maps.DeleteFunc(disable, func(slot, _ string) bool {
			return !slices.ContainsFunc(existing, func(rule proxmox.SecurityGroupRule) bool { return rule.Interface == slot })
		})
	}
	if len(disable) > 0 {
		if err := client.UpdateVM(ctx, vm.Host, vm.VMID, proxmox.ConfigChange{Set: disable}); err != nil {
			return err
		}
	}
	if err := client.SetFirewall(ctx, vm.Host, vm.VMID, rules); err != nil {
		return err
	}
	if len(enable) == 0 {
		return nil
	}
	return client.UpdateVM(ctx, vm.Host, vm.VMID, proxmox.ConfigChange{Set: enable})
}

// inheritsFirewall returns whether an interface is behind the firewall without a security
// group: the NodeClass sets it, or the Template of a Claim's VM has it. If the Template is unknown, every interface may be.
func (u *Updater) inheritsFirewall(claim *karpv1.NodeClaim) func(slot string) bool {
	in, ok, err := ReadIntent(claim)
	template, found := u.deps.Inventory.View().Guest(in.Region, in.TemplateID)
	if err != nil || !ok || !found || template.Config == nil || !template.Config.IsTemplate() {
		return func(string) bool { return true }
	}
	return func(slot string) bool {
		if own := in.Network.Interfaces[slot].Device.Firewall; own != nil {
			return *own
		}
		return slices.ContainsFunc(template.Config.Network().NICs(), func(nic proxmox.NIC) bool { return nic.Slot == slot && nic.Firewall })
	}
}
