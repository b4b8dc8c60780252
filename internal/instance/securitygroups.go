// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// groupsUpdating is the value of AnnotationSecurityGroups while the groups are written.
const groupsUpdating = "updating"

// EncodeSecurityGroups returns the value of AnnotationSecurityGroups. The order of the groups has no
// meaning.
func EncodeSecurityGroups(groups []v1alpha1.SecurityGroup) string {
	sorted := slices.SortedFunc(slices.Values(groups), func(a, b v1alpha1.SecurityGroup) int {
		return cmp.Or(cmp.Compare(a.Interface, b.Interface), cmp.Compare(a.Name, b.Name))
	})
	raw, err := json.Marshal(append([]v1alpha1.SecurityGroup{}, sorted...))
	if err != nil {
		panic(err) // strings always marshal
	}
	return string(raw)
}

// AreGroupsUpdating reports whether a change of the security groups was interrupted.
func AreGroupsUpdating(claim *karpv1.NodeClaim) bool {
	return claim.Annotations[v1alpha1.AnnotationSecurityGroups] == groupsUpdating
}

// RecordGroupsUpdate records that the groups are about to be written to a Claim's VM, unless the Claim
// records that it is launched with them. After such a launch, the VM is updated in place.
func RecordGroupsUpdate(ctx context.Context, kube client.Client, claim *karpv1.NodeClaim, groups []v1alpha1.SecurityGroup) error {
	recorded := claim.Annotations[v1alpha1.AnnotationSecurityGroups]
	if recorded == groupsUpdating || recorded == EncodeSecurityGroups(groups) {
		return nil
	}
	return Annotate(ctx, kube, claim, map[string]string{v1alpha1.AnnotationSecurityGroups: groupsUpdating})
}

// RecordLaunchedGroups records the security groups of a VM that an older release launched, which did
// not record them. The VM must have been launched or updated with this version of the class.
func (u *Updater) RecordLaunchedGroups(ctx context.Context, claim *karpv1.NodeClaim, class *v1alpha1.ProxmoxNodeClass) error {
	if claim.Annotations[v1alpha1.AnnotationSecurityGroups] != "" {
		return nil
	}
	return Annotate(ctx, u.deps.Kube, claim, map[string]string{v1alpha1.AnnotationSecurityGroups: EncodeSecurityGroups(class.Spec.SecurityGroups)})
}

// updateSecurityGroups writes the security groups of the class to a VM if they changed since they were
// last written, or if that is unknown. Otherwise, the firewall stays as the template or an administrator
// configured it.
func (u *Updater) updateSecurityGroups(ctx context.Context, claim *karpv1.NodeClaim, vm VM, groups []v1alpha1.SecurityGroup) error {
	wanted := EncodeSecurityGroups(groups)
	if claim.Annotations[v1alpha1.AnnotationSecurityGroups] == wanted {
		return nil
	}
	if err := RecordGroupsUpdate(ctx, u.deps.Kube, claim, groups); err != nil {
		return err
	}
	if err := updateFirewall(ctx, u.deps.Clients[vm.Region], vm, groups, u.inheritsFirewall(claim)); err != nil {
		return err
	}
	return Annotate(ctx, u.deps.Kube, claim, map[string]string{v1alpha1.AnnotationSecurityGroups: wanted})
}
