// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// bootstrapGroup is the group that the join tokens of karpenter-provider-proxmox carry.
const bootstrapGroup = "system:bootstrappers:karpenter:proxmox"

// bindings give Nodes what kubeadm would give them: to join with a token, to renew their certificate, and to be
// queried for logs. Kubernetes defines the roles.
var bindings = []struct {
	name, role, kind, subject string
}{
	{"kubeplane:node-bootstrapper", "system:node-bootstrapper", rbacv1.GroupKind, bootstrapGroup},
	{"kubeplane:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
		rbacv1.GroupKind, bootstrapGroup},
	{"kubeplane:node-autoapprove-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
		rbacv1.GroupKind, "system:nodes"},
	{"kubeplane:kubelet-api", "system:kubelet-api-admin", rbacv1.UserKind, kubeletClientUser},
}

func bindRoles(ctx context.Context, client kubernetes.Interface) error {
	for _, b := range bindings {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: b.name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: b.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: b.kind, Name: b.subject}},
		}
		if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("creating the ClusterRoleBinding %s: %w", b.name, err)
		}
	}
	return nil
}
