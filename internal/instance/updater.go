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
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
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

// IsLaunched reports whether the launch of a Claim's VM has ended.
func (u *Updater) IsLaunched(claim *karpv1.NodeClaim) bool { return u.deps.IsLaunched(claim) }

// UpdateInPlace sets the tags, security groups, resource pool and HA of a running VM to
// those of its NodeClass, and records that in its ownership mark. CPU, memory and disk are
// never changed: core would have wrong capacities of the Node. A VM whose mark does not record what was written is not changed.
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
	if err != nil || !needsUpdate(vm, class) {
		return err
	}
	tags, err := RenderTags(claim, class, Intent{
		Region: vm.Region, Host: vm.Host, VMID: vm.VMID, InstanceType: claim.Labels[corev1.LabelInstanceTypeStable], Machine: vm.mark.Machine,
	})
	if err != nil {
		return err
	}
	up := &update{Updater: u, client: u.deps.Clients[vm.Region], vm: vm, member: NewHAMember(claim, vm.Region, vm.VMID), spec: class.Spec, applied: *vm.mark.Applied}
	return up.run(ctx, class.InPlaceHash(), tags)
}

// NeedsUpdate reports whether a Claim's VM has not everything of its class that is written to running
// VMs. It is not known while the configuration of the VM was not read, or not since it was changed.
func (u *Updater) NeedsUpdate(claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) (needs, known bool) {
	id, err := v1alpha1.ParseProviderID(claim.Status.ProviderID)
	if err != nil {
		return false, true
	}
	if !u.deps.Inventory.HasCurrentConfig(id.Region, id.VMID) {
		return false, false
	}
	view := u.deps.Inventory.View()
	guest, _ := view.Guest(id.Region, id.VMID)
	vm, owned := newVM(u.deps.KubeCluster, view.Snapshots[id.Region], guest)
	return owned && vm.ClaimUID == string(claim.UID) && !vm.hasNewerMark && needsUpdate(vm, class), true
}

func needsUpdate(vm VM, class *v1alpha1.ProxmoxNodeClass) bool {
	applied := vm.mark.Applied
	return applied != nil && (applied.Hash != class.InPlaceHash() || len(applied.Pending) > 0)
}

// update is an update of a VM.
type update struct {
	*Updater
	client  proxmox.Client
	vm      VM
	member  HAMember
	spec    v1alpha1.ProxmoxNodeClassSpec
	applied ownership.Applied
}

func (u *update) run(ctx context.Context, hash string, tags []string) error {
	done := ownership.Applied{
		Hash: hash, Pool: u.spec.ResourcePool, HA: encodeHA(u.spec.HighAvailability), Groups: hashGroups(u.spec.SecurityGroups), DiskBytes: u.applied.DiskBytes,
	}
	// What is interrupted is pending, so the next update writes it even if the class was changed back.
	begun := u.applied
	if !HasGroups(u.applied, u.spec.SecurityGroups) {
		begun = begun.WithPending(ownership.PartGroups)
	}
	if string(done.HA) != string(u.applied.HA) {
		begun = begun.WithPending(ownership.PartHA)
	}
	begun.Hash = ""
	tagsOnly := len(begun.Pending) == 0 && begun.Pool == done.Pool
	if tagsOnly {
		begun = done
	}
	if err := u.write(ctx, begun, func(cfg proxmox.VMConfig) map[string]string { return changedTags(cfg, tags) }); err != nil {
		return err
	}
	if tagsOnly {
		return nil
	}
	if begun.IsPending(ownership.PartGroups) {
		if err := u.updateFirewall(ctx); err != nil {
			return err
		}
	}
	if err := u.updatePool(ctx, begun); err != nil {
		return err
	}
	if begun.IsPending(ownership.PartHA) {
		if err := u.deps.HA.Update(ctx, u.member, u.spec.HighAvailability, u.vm.HAState); err != nil {
			return err
		}
	}
	return u.write(ctx, done, nil)
}

// write changes the configuration of the VM, and what its mark records as written.
func (u *update) write(ctx context.Context, applied ownership.Applied, change func(proxmox.VMConfig) map[string]string) error {
	return u.deps.ChangeVM(ctx, u.vm.Identity, u.vm.Host, func(cfg proxmox.VMConfig, mark *ownership.Mark) map[string]string {
		mark.Applied = &applied
		if change == nil {
			return nil
		}
		return change(cfg)
	})
}

// ChangeVM changes the configuration of a VM and its ownership mark, if it is still the same VM. It
// sends nothing if nothing changes. The change is of the configuration as it is at the time of the write.
func (d Deps) ChangeVM(ctx context.Context, id Identity, host string, change func(proxmox.VMConfig, *ownership.Mark) map[string]string) error {
	client, err := d.Clients.Get(id.Region)
	if err != nil {
		return err
	}
	cfg, err := client.VMConfig(ctx, host, id.VMID)
	if err != nil {
		return err
	}
	if owns, why := id.Owns(cfg); !owns {
		return fmt.Errorf("VM %d on host %s does not belong to this NodeClaim: %s", id.VMID, host, why)
	}
	mark, _ := ownership.Read(cfg.Description())
	before, set := mark.Comment(), map[string]string{}
	maps.Copy(set, change(cfg, &mark))
	if mark.Comment() != before {
		set["description"] = mark.Notes(cfg.Description())
	}
	if len(set) == 0 {
		return nil
	}
	defer d.Inventory.InvalidateConfig(id.Region, id.VMID)
	return client.UpdateVM(ctx, host, id.VMID, proxmox.ConfigChange{Set: set, Digest: cfg.Digest})
}

// updatePool moves a VM to another resource pool. If an administrator moved it, it stays there.
// Without Pool.Audit no pool is shown; then the move fails with the missing privilege.
func (u *update) updatePool(ctx context.Context, begun ownership.Applied) error {
	guest, _ := u.deps.Inventory.View().Guest(u.vm.Region, u.vm.VMID)
	from, to := u.applied.Pool, u.spec.ResourcePool
	if from == to || guest.Pool != from && guest.Pool != "" {
		return nil
	}
	if err := u.client.MoveToPool(ctx, u.vm.VMID, from, to); err != nil {
		return err
	}
	begun.Pool = to
	return u.write(ctx, begun, nil)
}

// changedTags returns the change of a VM's tags. A class without tags does not change them: they are
// those of the template or of an administrator.
func changedTags(cfg proxmox.VMConfig, tags []string) map[string]string {
	desired := make([]string, 0, len(tags))
	for _, tag := range tags {
		desired = append(desired, strings.ToLower(tag))
	}
	slices.Sort(desired)
	desired = slices.Compact(desired)
	if len(desired) == 0 || slices.Equal(desired, slices.Sorted(slices.Values(cfg.Tags()))) {
		return nil
	}
	return map[string]string{"tags": strings.Join(desired, ";")}
}

// updateFirewall sets the rules before it puts NICs behind the firewall: without rules,
// a NIC there is cut off. For the same reason it takes NICs that lose their last group
// out before it removes the rules. NICs that an administrator put there stay.
func (u *update) updateFirewall(ctx context.Context) error {
	rules := vmconfig.FirewallRules(u.spec.SecurityGroups)
	hasRule := func(rules []proxmox.SecurityGroupRule, slot string) bool {
		return slices.ContainsFunc(rules, func(rule proxmox.SecurityGroupRule) bool { return rule.Interface == slot })
	}
	for _, rule := range rules {
		if _, ok := u.vm.Config.Options[rule.Interface]; !ok {
			return fmt.Errorf("a security group names interface %s, but VM %d has none of that name", rule.Interface, u.vm.VMID)
		}
	}
	disables := func(nic proxmox.NIC) bool {
		return nic.Firewall && !hasRule(rules, nic.Slot) && !u.inheritsFirewall(nic.Slot)
	}
	if slices.ContainsFunc(u.vm.Config.Network().NICs(), disables) {
		existing, err := u.client.SecurityGroupRules(ctx, u.vm.Host, u.vm.VMID)
		if err != nil {
			return err
		}
		if err := u.setFirewalled(ctx, false, func(nic proxmox.NIC) bool { return disables(nic) && hasRule(existing, nic.Slot) }); err != nil {
			return err
		}
	}
	if err := u.client.SetFirewall(ctx, u.vm.Host, u.vm.VMID, rules); err != nil {
		return err
	}
	return u.setFirewalled(ctx, true, func(nic proxmox.NIC) bool { return !nic.Firewall && hasRule(rules, nic.Slot) })
}

// setFirewalled puts the chosen NICs behind the firewall, or takes them out.
func (u *update) setFirewalled(ctx context.Context, firewalled bool, chosen func(proxmox.NIC) bool) error {
	if !slices.ContainsFunc(u.vm.Config.Network().NICs(), chosen) {
		return nil
	}
	return u.deps.ChangeVM(ctx, u.vm.Identity, u.vm.Host, func(cfg proxmox.VMConfig, _ *ownership.Mark) map[string]string {
		set := map[string]string{}
		for _, nic := range cfg.Network().NICs() {
			if chosen(nic) {
				nic.Firewall = firewalled
				set[nic.Slot] = nic.Encode()
			}
		}
		return set
	})
}

// inheritsFirewall reports whether an interface is behind the firewall without a security
// group: the NodeClass sets it, or the Template of the VM has it. If the Template is unknown, every interface may be.
func (u *update) inheritsFirewall(slot string) bool {
	if u.spec.Network != nil {
		for _, i := range u.spec.Network.Interfaces {
			if i.Name == slot && i.Firewall != nil {
				return *i.Firewall
			}
		}
	}
	if u.vm.mark.Source == nil {
		return true
	}
	template, found := u.deps.Inventory.View().Guest(u.vm.Region, u.vm.mark.Source.VMID)
	if !found || template.Config == nil || !template.Config.IsTemplate() {
		return true
	}
	return slices.ContainsFunc(template.Config.Network().NICs(), func(nic proxmox.NIC) bool { return nic.Slot == slot && nic.Firewall })
}
