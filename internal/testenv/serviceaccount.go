// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"testing"

	"github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// TokenAllowedToGet creates a service account in the namespace default that may get a path of
// an HTTP server, and returns a token of it. It waits until the API server knows the
// permission, because servers cache the response.
func TokenAllowedToGet(t testing.TB, config *rest.Config, name, path string) string {
	t.Helper()
	kube, err := kubernetes.NewForConfig(config)
	Must(t, err)
	ctx, create, meta := t.Context(), metav1.CreateOptions{}, metav1.ObjectMeta{Name: name}
	_, err = kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, create)
	Must(t, err)
	_, err = kube.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{path}, Verbs: []string{"get"}}},
	}, create)
	Must(t, err)
	_, err = kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: metav1.NamespaceDefault, Name: name}},
	}, create)
	Must(t, err)
	token, err := kube.CoreV1().ServiceAccounts(metav1.NamespaceDefault).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, create)
	Must(t, err)
	allowed := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: "system:serviceaccount:" + metav1.NamespaceDefault + ":" + name, NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"},
	}}
	gomega.NewWithT(t).Eventually(func(g gomega.Gomega) {
		known, err := kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}, create)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(known.Status.Authenticated).To(gomega.BeTrue())
		reviewed, err := kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, allowed, create)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(reviewed.Status.Allowed).To(gomega.BeTrue())
	}).Should(gomega.Succeed())
	return token.Status.Token
}
