// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package garbagecollection

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	nodeutils "sigs.k8s.io/karpenter/pkg/utils/node"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
)

// leftovers is what lies around beside VMs, as it was listed.
type leftovers struct {
	drives []instance.BootDrive
	tokens map[types.UID]string
	// swept: tokens were listed.
	swept bool
	// nodes are Nodes of pools that are not ready.
	nodes []*corev1.Node
}

func (l leftovers) none() bool { return len(l.drives) == 0 && len(l.nodes) == 0 && !l.swept }

// look lists leftovers: boot drives as the calls to spare allow, Nodes always, tokens now
// and then.
// What cannot be listed now is found the next time.
func (c *Controller) look(ctx context.Context) (found leftovers) {
	var err error
	if found.drives, err = c.Instances.BootDrives(ctx); err != nil {
		log.FromContext(ctx).Error(err, "looking for boot drives whose claim is gone")
	}
	// Often: Karpenter begins no work while there is a Node that it cannot place, and one
	// without a Claim never gets the labels for that.
	if found.nodes, err = c.unready(ctx); err != nil {
		log.FromContext(ctx).Error(err, "looking for nodes whose claim is gone")
	}
	now := c.clock.Now()
	if now.Before(c.leftoversAt) {
		return found
	}
	c.leftoversAt, found.swept = now.Add(c.SweepInterval), true
	if found.tokens, err = c.Instances.ListTokens(ctx); err != nil {
		log.FromContext(ctx).Error(err, "looking for join tokens whose claim is gone")
	}
	return found
}

// collect removes the leftovers whose Claim and VM are gone.
func (c *Controller) collect(ctx context.Context, found leftovers, vms []instance.VM, claims map[string]*karpv1.NodeClaim) {
	for _, orphan := range c.unclaimed(ctx, found, vms, claims) {
		c.remove(ctx, orphan)
	}
}

// unclaimed are the leftovers whose Claim and VM are gone.
func (c *Controller) unclaimed(ctx context.Context, found leftovers, vms []instance.VM, claims map[string]*karpv1.NodeClaim) []Orphan {
	var out []Orphan
	alive := func(uid string) bool { return claims[uid] != nil }
	withVM := map[string]bool{}
	for _, vm := range vms {
		withVM[vm.ClaimUID] = true
	}
	for _, drive := range found.drives {
		// A boot drive of a VM goes with the VM, unless it was taken back already: an
		// upload whose answer was lost can end after that.
		if inUse := alive(drive.ClaimUID) || withVM[drive.ClaimUID]; inUse && !takenBack(claims[drive.ClaimUID]) ||
			c.clock.Since(drive.Created) < c.GracePeriod {
			continue
		}
		out = append(out, driveOrphan(drive, func() error { return c.Instances.DeleteBootDrive(ctx, drive) }))
	}
	for uid, name := range found.tokens {
		if alive(string(uid)) || withVM[string(uid)] {
			continue
		}
		out = append(out, tokenOrphan(uid, name, func() error { return c.Instances.RevokeToken(ctx, uid) }))
	}
	return append(out, c.nodes(ctx, found.nodes, claims)...)
}

// takenBack tells whether a Claim's guest has joined and its boot drive is deleted.
func takenBack(claim *karpv1.NodeClaim) bool {
	return claim != nil && claim.Annotations[v1alpha1.AnnotationBootDataStatus] == v1alpha1.BootDataInitialized
}

// unready are the Nodes of pools that are not ready, and old enough to be.
func (c *Controller) unready(ctx context.Context) ([]*corev1.Node, error) {
	list := &corev1.NodeList{}
	if err := c.Kube.List(ctx, list, client.HasLabels{karpv1.NodePoolLabelKey}); err != nil {
		return nil, err
	}
	var out []*corev1.Node
	for i := range list.Items {
		node := &list.Items[i]
		if node.DeletionTimestamp.IsZero() && nodeutils.GetCondition(node, corev1.NodeReady).Status != corev1.ConditionTrue &&
			c.clock.Since(node.CreationTimestamp.Time) >= c.GracePeriod {
			out = append(out, node)
		}
	}
	return out, nil
}

// providerIDs of Claims.
func providerIDs(claims map[string]*karpv1.NodeClaim) map[string]bool {
	out := make(map[string]bool, len(claims))
	for _, claim := range claims {
		out[claim.Status.ProviderID] = true
	}
	return out
}

// nodes are the Nodes whose VM is proven gone and whose Claim is, too: a Claim that
// never registered leaves its Node behind, and only a cloud controller manager
// would take it away.
func (c *Controller) nodes(ctx context.Context, unready []*corev1.Node, claims map[string]*karpv1.NodeClaim) []Orphan {
	var out []Orphan
	claimed := providerIDs(claims)
	for _, node := range unready {
		id, err := v1alpha1.ParseProviderID(node.Spec.ProviderID)
		if err != nil || claimed[node.Spec.ProviderID] {
			continue
		}
		if _, err := c.Instances.Get(ctx, id); !errors.Is(err, proxmox.ErrNotFound) {
			continue
		}
		out = append(out, nodeOrphan(node.Name, func() error { return client.IgnoreNotFound(c.Kube.Delete(ctx, node)) }))
	}
	return out
}

// remove does it, or only says so, as the policy asks.
func (c *Controller) remove(ctx context.Context, orphan Orphan) {
	log := log.FromContext(ctx).WithValues("kind", orphan.Kind, "name", orphan.Name)
	if c.Policy == PolicyReport {
		log.Info("found something whose claim is gone; not removing it, as the orphan policy says")
		return
	}
	if err := orphan.remove(); err != nil {
		log.Error(err, "removing something whose claim is gone")
		return
	}
	log.Info("removed something whose claim is gone")
	c.metrics.removed.WithLabelValues(orphan.Kind).Inc()
}
