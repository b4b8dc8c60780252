// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// deployment returns a Deployment whose pods leave an unreachable node soon.
func deployment(name string, replicas int32) *appsv1.Deployment {
	seconds := int64(toleration)
	return tolerateUnready(harness.Deployment(name, replicas), &seconds)
}

// tolerateUnready sets how long the pods stay on a node that is not ready or unreachable; nil is without limit.
func tolerateUnready(d *appsv1.Deployment, seconds *int64) *appsv1.Deployment {
	for _, taint := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
		d.Spec.Template.Spec.Tolerations = append(d.Spec.Template.Spec.Tolerations, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds,
		})
	}
	return d
}

// spreadOverHosts spreads the pods over zones; a zone is a Proxmox host. Without minDomains
// the scheduler would use only the zones whose nodes are ready first.
func spreadOverHosts(d *appsv1.Deployment) *appsv1.Deployment {
	zones := int32(hosts)
	d.Spec.Template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
		MinDomains:    &zones,
		LabelSelector: d.Spec.Selector,
	}}
	return d
}

func consolidateAfter(ctx context.Context, kube client.Client, after string) error {
	pool := &karpv1.NodePool{}
	pool.Name = nodePoolName
	patch := fmt.Appendf(nil, `{"spec":{"disruption":{"consolidateAfter":%q}}}`, after)
	if err := kube.Patch(ctx, pool, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("enabling consolidation: %w", err)
	}
	return nil
}
