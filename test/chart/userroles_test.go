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

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/webpage"
)

// expectAllowed checks with a real API server whether a user may do something. The API server applies a new binding after
// some time.
func expectAllowed(t *testing.T, admin client.Client, want bool, spec authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	NewWithT(t).Eventually(func(g Gomega) {
		review := &authorizationv1.SubjectAccessReview{Spec: spec}
		g.Expect(admin.Create(t.Context(), review)).To(Succeed())
		g.Expect(review.Status.Allowed).To(Equal(want), "%v", spec)
	}).Should(Succeed())
}

// bind gives a user of the same name a ClusterRole.
func bind(t *testing.T, admin client.Client, role string) {
	t.Helper()
	check(t, admin.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role + "-test"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: role}},
	}))
}

// TestUserRoles checks what users may do with the roles that Kubernetes adds to view, edit and admin.
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
		check(t, admin.Get(t.Context(), client.ObjectKey{Name: name + "-" + role}, found))
		NewWithT(t).Expect(found.Labels).To(HaveKeyWithValue("rbac.authorization.k8s.io/aggregate-to-"+role, "true"))
		bind(t, admin, found.Name)
		for r, want := range allowed {
			expectAllowed(t, admin, want[role], authorizationv1.SubjectAccessReviewSpec{
				User: found.Name, ResourceAttributes: &authorizationv1.ResourceAttributes{Group: r.group, Resource: r.resource, Verb: r.verb},
			})
		}
	}
}

// TestWebPageRoles checks that a user with the role for viewers may read the web page, and that the controller may ask the API
// server about users.
func TestWebPageRoles(t *testing.T) {
	t.Parallel()
	const name = "web-page-roles"
	admin, _ := installPermissions(t, name)
	bind(t, admin, name+"-web-page-viewer")
	for user, want := range map[string]bool{name + "-web-page-viewer": true, "other": false} {
		expectAllowed(t, admin, want, authorizationv1.SubjectAccessReviewSpec{
			User: user, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: webpage.Path, Verb: "get"},
		})
	}
	for group, resource := range map[string]string{"authentication.k8s.io": "tokenreviews", "authorization.k8s.io": "subjectaccessreviews"} {
		expectAllowed(t, admin, true, authorizationv1.SubjectAccessReviewSpec{
			User:               fmt.Sprintf("system:serviceaccount:%s:%s", namespace, name),
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: group, Resource: resource, Verb: "create"},
		})
	}
}
