// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/keyed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// HA adds VMs to Proxmox HA and to its rules, and removes them. A rule is changed by reading
// and writing all of its resources, and a digest covers all rules of a Cluster, so changes of
// the rules of a Cluster are made one after the other.
type HA struct {
	deps Deps
	// writing is held while the rules of a region are changed.
	writing *keyed.Semaphore[string]
}

// NewHA returns an HA.
func NewHA(deps Deps) *HA { return &HA{deps: deps, writing: keyed.NewSemaphore[string](1)} }

// HAMember is a VM in HA.
type HAMember struct {
	Region   string
	VMID     int
	NodePool string
}

// NewHAMember returns the VM of a Claim.
func NewHAMember(claim *karpv1.NodeClaim, region string, vmid int) HAMember {
	return HAMember{Region: region, VMID: vmid, NodePool: claim.Labels[karpv1.NodePoolLabelKey]}
}

func (m HAMember) id() string { return proxmox.HAResourceID(m.VMID) }

// haRuleRetries limits the retries after changes of rules by another user.
const haRuleRetries = 5

// mark is the comment of the resources and the rule of a NodePool. It identifies the owner.
func (h *HA) mark(m HAMember) string {
	return fmt.Sprintf("Karpenter NodePool %s, Kubernetes cluster %s", m.NodePool, h.deps.KubeCluster)
}

// ruleName returns the name of the rule that keeps the VMs of a NodePool on separate Hosts. A
// NodePool's name has no underscore, so two NodePools never have the same rule.
func (h *HA) ruleName(m HAMember) string {
	return fmt.Sprintf("karpenter-%s-%s", ShortClusterID(h.deps.KubeCluster), strings.ReplaceAll(m.NodePool, ".", "_"))
}

// rules returns the names of all rules that a VM is to be in.
func (h *HA) rules(m HAMember, want *v1alpha1.HighAvailability) []string {
	if want == nil {
		return nil
	}
	names := slices.Clone(want.Rules)
	if want.SeparateHosts {
		names = append(names, h.ruleName(m))
	}
	return names
}

// Add adds a VM to HA and to its rules. It can be repeated after each step.
func (h *HA) Add(ctx context.Context, m HAMember, want v1alpha1.HighAvailability) error {
	client, err := h.deps.Clients.Get(m.Region)
	if err != nil {
		return err
	}
	release := proxmox.Version{}
	if snapshot := h.deps.Inventory.View().Snapshots[m.Region]; snapshot != nil {
		release = snapshot.Version
	}
	resource := proxmox.HAResource{
		ID: m.id(), State: cmp.Or(string(want.State), string(v1alpha1.HAStateStarted)),
		MaxRestart: 1, MaxRelocate: 1, Group: want.Group, Comment: h.mark(m),
	}
	if want.MaxRestart != nil {
		resource.MaxRestart = int(*want.MaxRestart)
	}
	if want.MaxRelocate != nil {
		resource.MaxRelocate = int(*want.MaxRelocate)
	}
	if err = client.AddHAResource(ctx, resource, release); errors.Is(err, proxmox.ErrExists) {
		err = client.UpdateHAResource(ctx, resource, release)
	}
	if err != nil {
		return err
	}
	for _, name := range h.rules(m, &want) {
		if err := h.changeRule(ctx, m, func(repeated bool) error { return h.join(ctx, client, m, name, repeated) }); err != nil {
			return err
		}
	}
	return nil
}

// Update makes a VM a member of exactly the desired rules, with the desired options. It
// removes a VM from HA that is not to be in HA any more, unless another user added it.
func (h *HA) Update(ctx context.Context, m HAMember, want *v1alpha1.HighAvailability, state string) error {
	if want == nil && state == "" {
		return nil
	}
	client, err := h.deps.Clients.Get(m.Region)
	if err != nil {
		return err
	}
	if want == nil {
		return h.removeOwned(ctx, client, m)
	}
	if err := h.Add(ctx, m, *want); err != nil {
		return err
	}
	snapshot := h.deps.Inventory.View().Snapshots[m.Region]
	if state == "" || snapshot == nil || !snapshot.Version.AtLeast(9, 0) {
		return nil // it was in no rule before
	}
	return h.leaveOthers(ctx, client, m, h.rules(m, want))
}

// removeOwned removes a VM from HA unless another user added it.
func (h *HA) removeOwned(ctx context.Context, client proxmox.Client, m HAMember) error {
	resource, err := client.HAResource(ctx, m.VMID)
	if _, forbidden := errors.AsType[*proxmox.ForbiddenError](err); forbidden || errors.Is(err, proxmox.ErrNotFound) {
		return nil
	}
	if err != nil || resource.Comment != h.mark(m) {
		return err
	}
	return h.Remove(ctx, m, nil)
}

// leaveOthers removes a VM from all rules except the desired ones, as far as Proxmox allows it:
// see leave.
func (h *HA) leaveOthers(ctx context.Context, client proxmox.Client, m HAMember, desired []string) error {
	rules, err := client.HARules(ctx)
	if err != nil {
		return err
	}
	for _, rule := range rules {
		if slices.Contains(rule.Resources, m.id()) && !slices.Contains(desired, rule.Name) {
			if err := h.changeRule(ctx, m, func(repeated bool) error { return h.leave(ctx, client, m, rule.Name, repeated) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove removes a VM from HA and from all of its rules. The VM keeps its power state.
func (h *HA) Remove(ctx context.Context, m HAMember, had *v1alpha1.HighAvailability) error {
	client, err := h.deps.Clients.Get(m.Region)
	if err != nil {
		return err
	}
	if err := client.RemoveHAResource(ctx, m.VMID); !errors.Is(err, proxmox.ErrNotFound) {
		return err
	}
	// Proxmox removes a resource from the rules, but not if it was removed by a destroy of its VM.
	return h.Leave(ctx, m, had)
}

// Leave removes a VM from the rules that it was added to, and does not change the VM in HA.
func (h *HA) Leave(ctx context.Context, m HAMember, had *v1alpha1.HighAvailability) error {
	client, err := h.deps.Clients.Get(m.Region)
	if err != nil {
		return err
	}
	for _, name := range h.rules(m, had) {
		if err := h.changeRule(ctx, m, func(repeated bool) error { return h.leave(ctx, client, m, name, repeated) }); err != nil {
			return err
		}
	}
	return nil
}

// changeRule calls change while no other rule of the region is changed, and again after a
// conflict.
func (h *HA) changeRule(ctx context.Context, m HAMember, change func(repeated bool) error) error {
	release, err := h.writing.Acquire(ctx, m.Region)
	if err != nil {
		return err
	}
	defer release()
	for n := range haRuleRetries {
		if err = change(n > 0); !errors.Is(err, proxmox.ErrConflict) {
			return err
		}
	}
	return err
}

// join adds a VM to a rule. It creates the rule of a NodePool for its second VM: Proxmox
// refuses one with a single resource.
func (h *HA) join(ctx context.Context, client proxmox.Client, m HAMember, name string, repeated bool) error {
	rules, err := client.HARules(ctx)
	if err != nil {
		return err
	}
	owned := name == h.ruleName(m)
	i := slices.IndexFunc(rules, func(rule proxmox.HARule) bool { return rule.Name == name })
	switch {
	case i < 0 && owned:
		return h.createRule(ctx, client, m)
	case i < 0:
		return fmt.Errorf("%w: HA rule %q does not exist", proxmox.ErrFailed, name)
	case owned && rules[i].Comment != h.mark(m):
		return fmt.Errorf("%w: HA rule %q has the comment %q instead of %q, so it is not owned by this Kubernetes cluster; rename or delete it",
			proxmox.ErrFailed, name, rules[i].Comment, h.mark(m))
	case slices.Contains(rules[i].Resources, m.id()):
		return nil
	}
	rule := rules[i]
	if rule.Resources, err = managed(ctx, client, rule.Resources, repeated); err != nil {
		return err
	}
	rule.Resources = append(rule.Resources, m.id())
	return client.UpdateHARule(ctx, rule)
}

// createRule creates the rule of a NodePool with all of its VMs that are in HA, if there are
// two.
func (h *HA) createRule(ctx context.Context, client proxmox.Client, m HAMember) error {
	resources, err := client.HAResources(ctx)
	if err != nil {
		return err
	}
	rule := proxmox.HARule{Name: h.ruleName(m), Type: proxmox.HAResourceAffinity, Affinity: proxmox.HANegative, Comment: h.mark(m)}
	for _, resource := range resources {
		if resource.Comment == rule.Comment {
			rule.Resources = append(rule.Resources, resource.ID)
		}
	}
	if len(rule.Resources) < 2 {
		return nil
	}
	slices.Sort(rule.Resources)
	return client.CreateHARule(ctx, rule)
}

// leave removes a VM from a rule. It deletes the rule with its last resource, as Proxmox
// does, and the rule of a NodePool with its last but one.
//
// Proxmox refuses a resource affinity rule with a single resource, and the rule of an
// administrator is not deleted. So the VM stays in such a rule if it is the last but one. The
// entry of a deleted VM has no effect, and join removes it when another VM is added. A running
// VM stays subject to the rule until it is removed from HA, which removes it from all rules.
func (h *HA) leave(ctx context.Context, client proxmox.Client, m HAMember, name string, repeated bool) error {
	rules, err := client.HARules(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(rules, func(rule proxmox.HARule) bool { return rule.Name == name })
	if i < 0 || !slices.Contains(rules[i].Resources, m.id()) {
		return nil
	}
	rule := rules[i]
	if rule.Resources, err = managed(ctx, client, rule.Resources, repeated); err != nil {
		return err
	}
	rule.Resources = slices.DeleteFunc(rule.Resources, func(id string) bool { return id == m.id() })
	switch {
	case len(rule.Resources) == 0, len(rule.Resources) == 1 && rule.Comment == h.mark(m):
		return client.DeleteHARule(ctx, name)
	case len(rule.Resources) == 1 && rule.Type == proxmox.HAResourceAffinity:
		log.FromContext(ctx).Info("keeping VM in HA rule, because Proxmox refuses a resource affinity rule with one resource",
			"vmid", m.VMID, "region", m.Region, "rule", name, "other", rule.Resources[0])
		return nil
	}
	return client.UpdateHARule(ctx, rule)
}

// managed returns the resources of a rule that are in HA. Proxmox refuses a rule with
// others, which are left when a VM is destroyed by hand. They are rare, so they are only
// looked up after a conflict.
func managed(ctx context.Context, client proxmox.Client, ids []string, repeated bool) ([]string, error) {
	ids = slices.Clone(ids)
	if !repeated {
		return ids, nil
	}
	resources, err := client.HAResources(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(ids, func(id string) bool {
		return !slices.ContainsFunc(resources, func(resource proxmox.HAResource) bool { return resource.ID == id })
	}), nil
}
