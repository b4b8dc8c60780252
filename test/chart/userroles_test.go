// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestUserRoles checks with a real API server what users may do with the roles that Kubernetes
// adds to view, edit and admin.
func TestUserRoles(t *testing.T) {
	t.Parallel()
	const name = "user-roles"
	admin, _ := installPermissions(t, name)
	type request struct{ group, resource, verb string }
	allowed := map[request]map[string]bool{}
	for _, resource := range []string{"proxmoxnodeclasses", "proxmoxtemplates", "proxmoxunmanagedtemplates"} {
		allowed[request{"karpenter.proxmox.sinextra.dev", resource, "watch"}] = map[string]bool{"view": true}
		allowed[request{"karpenter.proxmox.sinextra.dev", resource, "update"}] = map[string]bool{"admin": true}
	}
	for _, resource := range []string{"nodepools", "nodeclaims", "nodeoverlays"} {
		allowed[request{"karpenter.sh", resource, "list"}] = map[string]bool{"view": true}
		allowed[request{"karpenter.sh", resource, "delete"}] = map[string]bool{"edit": true}
	}
	allowed[request{"autoscaling.x-k8s.io", "capacitybuffers", "get"}] = map[string]bool{"view": true}
	allowed[request{"autoscaling.x-k8s.io", "capacitybuffers", "create"}] = map[string]bool{"edit": true}
	allowed[request{"", "secrets", "get"}] = nil

	for _, role := range []string{"view", "edit", "admin"} {
		found := &rbacv1.ClusterRole{}
		testenv.Must(t, admin.Get(t.Context(), client.ObjectKey{Name: name + "-" + role}, found))
		if found.Labels["rbac.authorization.k8s.io/aggregate-to-"+role] != "true" {
			t.Errorf("ClusterRole %s has the labels %v, want one that adds it to %s", found.Name, found.Labels, role)
		}
		testenv.Must(t, admin.Create(t.Context(), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-test-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: found.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name + "-" + role}},
		}))
		for r, want := range allowed {
			// The API server applies a new binding after some time.
			NewWithT(t).Eventually(func() error {
				review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
					User:               name + "-" + role,
					ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource, Verb: r.verb},
				}}
				if err := admin.Create(t.Context(), review); err != nil {
					return err
				}
				if review.Status.Allowed != want[role] {
					return fmt.Errorf("%s may %s %s: %t, want %t", role, r.verb, r.resource, review.Status.Allowed, want[role])
				}
				return nil
			}).Should(Succeed())
		}
	}
}
