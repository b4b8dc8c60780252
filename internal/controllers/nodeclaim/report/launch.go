// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"

	"github.com/awslabs/operatorpkg/status"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance"
)

// joiningNodeField is the index of certificate requests by the Node that joins with them.
const joiningNodeField = "joiningNode"

// isInitialized reports whether this controller launched the VM of a Claim, and its Node is initialized.
func isInitialized(claim *karpv1.NodeClaim) bool {
	return claim.Annotations[v1alpha1.AnnotationLaunchedBy] == v1alpha1.LaunchedByVersion &&
		claim.StatusConditions(status.WithObservedOnly()).Get(karpv1.ConditionTypeInitialized).IsTrue()
}

// joiningNode returns the name of the Node that joins with a certificate request; none for
// other requests.
func joiningNode(o client.Object) []string {
	request, ok := o.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return nil
	}
	if node := instance.JoiningNode(request); node != "" {
		return []string{node}
	}
	return nil
}

// indexRequests indexes certificate requests by Node.
func indexRequests(ctx context.Context, m manager.Manager) error {
	if err := m.GetFieldIndexer().IndexField(ctx, &certificatesv1.CertificateSigningRequest{}, joiningNodeField, joiningNode); err != nil {
		return fmt.Errorf("indexing certificate requests by Node: %w", err)
	}
	return nil
}

// reportLaunch measures a launch once, when its Node is initialized: the steps of Proxmox, which the
// Launcher knows, and those of guest and cluster, which Node, certificate requests and conditions
// show. It sends no requests to Proxmox.
func (c *Controller) reportLaunch(ctx context.Context, claim *karpv1.NodeClaim) error {
	if !isInitialized(claim) {
		return nil
	}
	observed, err := c.observe(ctx, claim)
	if err != nil {
		return err
	}
	progress, ok := c.deps.Launches.EndProgress(string(claim.UID))
	if !ok {
		return nil
	}
	plan, _ := c.deps.Launches.Plan(string(claim.UID))
	progress.Observe(claim, plan.Time, observed, c.deps.Clock.Now())
	log.FromContext(ctx).Info("node initialized", "timeline", progress.String())
	c.deps.Metrics.Initialized(progress)
	return nil
}

// observe reads the objects of a Claim's Node. Its name is known when Karpenter has
// registered it, and before is usually that of the Claim or its machine.
func (c *Controller) observe(ctx context.Context, claim *karpv1.NodeClaim) (instance.Observed, error) {
	observed, name := instance.Observed{}, instance.ExpectedNodeName(claim)
	if claim.Status.NodeName != "" {
		name = claim.Status.NodeName
		node := &corev1.Node{}
		err := c.deps.Kube.Get(ctx, client.ObjectKey{Name: name}, node)
		if client.IgnoreNotFound(err) != nil {
			return observed, fmt.Errorf("reading Node %s: %w", name, err)
		}
		if err == nil {
			observed.Node = node
		}
	}
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := c.deps.Kube.List(ctx, requests, client.MatchingFields{joiningNodeField: name}); err != nil {
		return observed, fmt.Errorf("listing certificate requests of Node %s: %w", name, err)
	}
	observed.Requests = requests.Items
	return observed, nil
}
