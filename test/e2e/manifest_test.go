// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestManifestInstall follows docs/install-manifest.md with the manifest of a release, which
// MANIFEST names, and launches a Node.
func TestManifestInstall(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it installs the controller"))
	manifest := os.Getenv("MANIFEST")
	if manifest == "" {
		t.Skip("SKIPPED: MANIFEST must name the manifest of a release; make e2e renders it")
	}
	e := newEnv(t, setup{idle: true, hosts: 2})
	e.removeJoinPermissions(t)
	home := t.TempDir()
	writeJSON(t, filepath.Join(home, "config.yaml"), map[string]any{"clusters": []harness.Cluster{e.proxmox.Cluster(e.region)}})
	for _, block := range shellBlocks(t, "../../docs/install-manifest.md") {
		// Here, the harness has created the CRDs with another field manager.
		block = strings.Replace(block, "--server-side", "--server-side --force-conflicts", 1)
		e.shell(t, home, strings.ReplaceAll(block, "https://github.com/karpenter-proxmox/karpenter-provider-proxmox/releases/latest/download/install.yaml", manifest))
	}
	t.Run("users_can_view", e.expectViewer)
	e.runInstalled(t)
	// The manifest allows the Secrets of the recipes.
	p, claim, _ := e.launchNode(t, "kubeadm")
	p.deleteClaims(t, claim)
	if log := e.logOf(t); strings.Contains(log, "forbidden") {
		t.Errorf("the permissions of the manifest are insufficient:\n%s", linesWith(log, "forbidden"))
	}
}

// expectViewer checks that Kubernetes has added the chart's permissions to its ClusterRole view.
func (e *env) expectViewer(t *testing.T) {
	const user = "viewer"
	must(t, e.kube.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}))
	for verb, want := range map[string]bool{"list": true, "delete": false} {
		e.eventually(t, fmt.Sprintf("%s may %s: %t", user, verb, want), func(ctx context.Context) error {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
				User:               user,
				ResourceAttributes: &authorizationv1.ResourceAttributes{Group: v1alpha1.Group, Resource: "proxmoxnodeclasses", Verb: verb},
			}}
			if err := e.kube.Create(ctx, review); err != nil {
				return err
			}
			if review.Status.Allowed != want {
				return fmt.Errorf("found %t: %s", review.Status.Allowed, review.Status.Reason)
			}
			return nil
		})
	}
}
