// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/deletion"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// resources are what can be orphaned beside VMs.
type resources struct {
	drives []deletion.BootDrive
	// tokens are the names of the Claims with a join token, by UID.
	tokens map[types.UID]string
	// swept: join tokens were listed.
	swept bool
	// nodes are Nodes of NodePools that are not ready.
	nodes []*corev1.Node
}

func (r resources) isEmpty() bool { return len(r.drives) == 0 && len(r.nodes) == 0 && !r.swept }

// listResources lists boot drives as the call budget allows, Nodes always, and join
// tokens if that is allowed. Join tokens have no region, so they are listed only if the
// VMs of all regions are known. With an error, it returns what it could list.
func (c *Controller) listResources(ctx context.Context, allPolled bool) (found resources, err error) {
	var problems []error
	failed := func(what string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("listing %s: %w", what, err))
		}
	}
	found.drives, err = c.deps.Deleter.ListBootDrives(ctx)
	failed("boot drives", err)
	// Always: Karpenter provisions nothing while there is a Node without the labels that
	// only a Claim sets.
	found.nodes, err = c.unreadyNodes(ctx)
	failed("nodes", err)
	if c.deps.Tokens == nil || !allPolled {
		return found, errors.Join(problems...)
	}
	found.swept = true
	tokens, err := c.deps.Tokens.ListOwned(ctx)
	failed("join tokens", err)
	found.tokens = make(map[types.UID]string, len(tokens))
	for _, token := range tokens {
		found.tokens[token.Claim.UID] = token.Claim.Name
	}
	return found, errors.Join(problems...)
}

// orphanResources returns the resources whose Claim and VM do not exist.
func (c *Controller) orphanResources(ctx context.Context, found resources, vms []instance.VM, claims map[string]*karpv1.NodeClaim) []Orphan {
	var out []Orphan
	withVM, cleanedUp := claimUIDs(vms), map[string]bool{}
	for _, vm := range vms {
		if claim := claims[vm.ClaimUID]; claim != nil && claim.Status.ProviderID == vm.ProviderID() {
			cleanedUp[vm.ClaimUID] = !vm.HasBootDrive()
		}
	}
	for _, drive := range found.drives {
		// A boot drive is deleted with its VM, unless its cleanup ended early, or it was uploaded again
		// later: so can an upload whose response was lost.
		if inUse := claims[drive.ClaimUID] != nil || withVM[drive.ClaimUID]; inUse && !cleanedUp[drive.ClaimUID] ||
			c.deps.Clock.Since(drive.Created) < c.deps.Rules.GracePeriod {
			continue
		}
		out = append(out, driveOrphan(drive, func() error { return c.deps.Deleter.DeleteBootDrive(ctx, drive) }))
	}
	for uid, name := range found.tokens {
		if claims[string(uid)] == nil && !withVM[string(uid)] {
			out = append(out, tokenOrphan(uid, name, func() error { return c.deps.Tokens.Revoke(ctx, uid) }))
		}
	}
	return append(out, c.orphanNodes(ctx, found.nodes, claims)...)
}

// unreadyNodes returns the Nodes of NodePools that are not ready and older than the short
// grace period.
func (c *Controller) unreadyNodes(ctx context.Context) ([]*corev1.Node, error) {
	list := &corev1.NodeList{}
	if err := c.deps.Kube.List(ctx, list, client.HasLabels{karpv1.NodePoolLabelKey}); err != nil {
		return nil, err
	}
	var out []*corev1.Node
	for i := range list.Items {
		node := &list.Items[i]
		if node.DeletionTimestamp.IsZero() && nodeutils.GetCondition(node, corev1.NodeReady).Status != corev1.ConditionTrue &&
			c.deps.Clock.Since(node.CreationTimestamp.Time) >= c.deps.Rules.shortGracePeriod() {
			out = append(out, node)
		}
	}
	return out, nil
}

// claimsByProviderID returns Claims by their provider IDs.
func claimsByProviderID(claims map[string]*karpv1.NodeClaim) map[string]*karpv1.NodeClaim {
	out := make(map[string]*karpv1.NodeClaim, len(claims))
	for _, claim := range claims {
		out[claim.Status.ProviderID] = claim
	}
	return out
}

// orphanNodes returns the Nodes whose Claim does not exist and whose VM is confirmed
// deleted: the Node of a Claim that never registered is deleted only by a cloud
// controller manager otherwise.
func (c *Controller) orphanNodes(ctx context.Context, unready []*corev1.Node, claims map[string]*karpv1.NodeClaim) []Orphan {
	var out []Orphan
	claimed := claimsByProviderID(claims)
	for _, node := range unready {
		id, err := v1alpha1.ParseProviderID(node.Spec.ProviderID)
		if err != nil || claimed[node.Spec.ProviderID] != nil {
			continue
		}
		if _, err := c.deps.VMs.Get(ctx, id); !errors.Is(err, proxmox.ErrNotFound) {
			continue
		}
		out = append(out, nodeOrphan(node.Name, func() error {
			err := c.deps.Kube.Delete(ctx, node, client.Preconditions{UID: &node.UID})
			if apierrors.IsConflict(err) {
				return nil // another Node has the name now
			}
			return client.IgnoreNotFound(err)
		}))
	}
	return out
}

// deleteResource deletes an orphan, or only reports it, according to the policy.
func (c *Controller) deleteResource(ctx context.Context, orphan Orphan) {
	log := log.FromContext(ctx).WithValues("kind", orphan.Kind, "name", orphan.Name)
	if c.deps.Rules.Policy == PolicyReport {
		log.Info("found orphan, keeping it by policy")
		return
	}
	if err := orphan.delete(); err != nil {
		log.Error(err, "deleting orphan failed")
		return
	}
	log.Info("deleted orphan")
	c.metrics.deleted.WithLabelValues(orphan.Kind).Inc()
}
