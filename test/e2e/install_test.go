// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/host/maintenance"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// rootPassword is unique, so it can be searched for.
const rootPassword = "correct-horse-battery-staple"

const releaseName = "karpenter-provider-proxmox"

// TestHelmInstall checks that the chart's installation is sufficient, including its
// permissions, to create and delete a Node, that an upgrade keeps the Node, and that no secret
// leaks.
func TestHelmInstall(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it installs the release several times"))
	e := newEnv(t, setup{idle: true, hosts: 2, scenario: func(s *pvesim.Scenario) {
		i := slices.IndexFunc(s.Users, func(u pvesim.User) bool { return u.ID == "root@pam" })
		s.Users[i].Password = rootPassword
	}})
	e.removeJoinPermissions(t)
	values := e.chartValues()
	e.helm(t, values)
	e.runInstalled(t)
	p := e.newNodePool(t, "installed", func(kit *harness.Kit) {
		kit.Values.StringData["sshAuthorizedKeys"] = "ssh-ed25519 AAAA-a-value-of-a-secret-" + t.Name()
		kit.Values.StringData["unused"] = "a value that no template uses, " + t.Name()
		// Pinning needs root's login, because Proxmox does not allow it with a token.
		kit.Class.Spec.CPU = &v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}
	})
	p.deployPods(t, 1)
	p.waitForPods(t, 1)
	claim := p.waitForClaim(t, "is settled", settled)
	p.waitForClaim(t, "has a complete timeline", hasTimeline)
	var launching map[string]*dto.MetricFamily
	e.eventually(t, "the metrics of the timeline", func(ctx context.Context) (err error) {
		launching, err = e.controller.MetricFamilies(ctx)
		if err == nil && launching["karpenter_proxmox_launch_step_duration_seconds"] == nil {
			err = errors.New("there are none")
		}
		return err
	})

	values["replicaCount"] = 2
	ports, err := harness.FreePorts(1)
	must(t, err)
	values["settings"] = map[string]any{"proxmoxPollInterval": "1s", "proxmoxDialTimeout": "60s", "webPagePort": ports[0], "featureGates": map[string]any{"nodeRepair": true}}
	values["metrics"] = map[string]any{"enabled": true}
	e.helm(t, values)
	e.controller.Stop()
	e.runInstalled(t)
	t.Run("maintenance_is_watched", func(t *testing.T) {
		must(t, e.kube.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: maintenance.ConfigMapName}, Data: map[string]string{"pve1": ""},
		}))
		e.waitForEvent(t, maintenance.ConfigMapName, v1alpha1.EventInvalidHostMaintenance)
	})
	t.Run("upgrade_keeps_node", func(t *testing.T) { p.expectSameClaim(t, claim) })
	t.Run("web_page", func(t *testing.T) { e.expectWebPage(t, ports[0], claim) })
	// Before the claim is deleted, so its objects are searched too.
	t.Run("no_secrets_leaked", func(t *testing.T) {
		e.expectNoSecrets(t)
		e.expectSearchedFor(t, "the token of the cloud config", "the password of root", "token-secret", "installed-values/sshAuthorizedKeys",
			"installed-values/unused", "installed-templates/user-data", releaseName+"/config.yaml")
	})
	p.deleteClaims(t, claim)
	t.Run("no_secrets_leaked_after_delete", e.expectNoSecrets)
	t.Run("metrics_reference", func(t *testing.T) {
		removing, err := e.controller.MetricFamilies(t.Context())
		must(t, err)
		checkMetricsReference(t, slices.Concat(slices.Collect(maps.Keys(launching)), slices.Collect(maps.Keys(removing))))
		for _, families := range []map[string]*dto.MetricFamily{launching, removing} {
			checkLabelValues(t, families)
			checkCodes(t, families)
		}
	})
	t.Run("log_key", func(t *testing.T) { e.checkClaimLog(t, claim) })
	if log := e.logOf(t); strings.Contains(log, "forbidden") || strings.Contains(log, "cannot list") {
		t.Errorf("the chart's permissions are insufficient:\n%s", linesWith(log, "forbidden", "cannot list"))
	}
	e.controller.Stop()
	t.Run("join_token_deleted_with_claim", e.expectTokenDeletedWithClaim)
}

// expectTokenDeletedWithClaim checks that Kubernetes deletes the join token of a NodeClaim that
// the controller did not delete: the controller must not list Secrets to find it.
func (e *env) expectTokenDeletedWithClaim(t *testing.T) {
	claim := &karpv1.NodeClaim{ObjectMeta: metav1.ObjectMeta{Name: "removed-by-hand"}, Spec: karpv1.NodeClaimSpec{
		NodeClassRef: &karpv1.NodeClassReference{Group: v1alpha1.Group, Kind: v1alpha1.ProxmoxNodeClassKind, Name: "installed"},
		Requirements: []karpv1.NodeSelectorRequirementWithMinValues{},
	}}
	must(t, e.kube.Create(t.Context(), claim))
	tokens := &bootdata.Tokens{Client: e.kube}
	_, err := tokens.Issue(t.Context(), bootdata.Claim{Name: claim.Name, UID: claim.UID})
	must(t, err)
	must(t, e.kube.Delete(t.Context(), claim))
	e.eventually(t, "the join token is deleted", func(ctx context.Context) error {
		owned, err := tokens.ListOwned(ctx)
		if err == nil && len(owned) > 0 {
			err = fmt.Errorf("%d tokens exist", len(owned))
		}
		return err
	})
}

// removeJoinPermissions removes the permissions with which a kubeplane lets Nodes join, so
// those of the chart are tested.
func (e *env) removeJoinPermissions(t *testing.T) {
	t.Helper()
	for _, name := range []string{"kubeplane:node-bootstrapper", "kubeplane:node-autoapprove-bootstrap"} {
		must(t, e.kube.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
}

// chartValues returns the values file of the documentation for this Proxmox. It includes
// all kinds of secrets: a token and root's login; boot data has values and templates.
func (e *env) chartValues() map[string]any {
	cluster := e.proxmox.Cluster(e.region)
	cluster.Root = &harness.RootLogin{Username: "root@pam", Password: rootPassword}
	e.secrets.Add("the password of root", rootPassword)
	return map[string]any{
		"bootDataSecrets": map[string]any{metav1.NamespaceSystem: []string{"installed-templates", "installed-values"}},
		// A request that a busy machine delays would count as failed.
		"settings":          map[string]any{"proxmoxDialTimeout": "60s"},
		"logVerbosityLevel": "debug", "config": map[string]any{"clusters": []harness.Cluster{cluster}},
		"nodeSelector": map[string]any{"node-role.kubernetes.io/control-plane": ""},
		"tolerations":  []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}},
	}
}

// expectSameClaim checks that the NodePool's only NodeClaim is the given one with the same VM.
func (p *nodePool) expectSameClaim(t *testing.T, want *karpv1.NodeClaim) {
	t.Helper()
	got := p.waitForClaim(t, "is the same", func(found *karpv1.NodeClaim) error {
		if found.UID != want.UID {
			return fmt.Errorf("it is %s, want %s", found.Name, want.Name)
		}
		return settled(found)
	})
	if got.Status.ProviderID != want.Status.ProviderID {
		t.Errorf("the node's provider ID is %s, want %s", got.Status.ProviderID, want.Status.ProviderID)
	}
}

// expectSearchedFor checks that expectNoSecrets knows the secrets with these suffixes.
func (e *env) expectSearchedFor(t *testing.T, suffixes ...string) {
	t.Helper()
	for _, suffix := range suffixes {
		if !slices.ContainsFunc(e.secrets.Names(), func(name string) bool { return strings.HasSuffix(name, suffix) }) {
			t.Errorf("%s was not searched for, only %q", suffix, e.secrets.Names())
		}
	}
}

// helm installs or upgrades the chart with the given values.
func (e *env) helm(t *testing.T, values map[string]any) {
	t.Helper()
	binary := os.Getenv("HELM")
	if binary == "" {
		t.Skip("SKIPPED: HELM must name the helm binary; make e2e builds it and sets it")
	}
	must(t, e.plane.InstallChart(t.Context(), binary, filepath.Join(charts(t), releaseName), releaseName, values))
}

// runInstalled starts the controller as the Deployment specifies.
func (e *env) runInstalled(t *testing.T) {
	t.Helper()
	_, binary := binaries(t)
	e.runBinary(t, binary)
}

func (e *env) runBinary(t *testing.T, binary string) {
	t.Helper()
	var err error
	e.controller, err = harness.NewInstalledController(t.Context(), e.plane, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: releaseName},
		harness.ControllerOptions{Binary: binary, Dir: filepath.Join(e.dir, "installed")})
	must(t, err)
	e.logs = append(e.logs, e.controller.Log())
	t.Cleanup(e.controller.Stop)
	must(t, e.controller.Start(t.Context()))
}

func (e *env) logOf(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(e.controller.Log())
	must(t, err)
	return string(content)
}

func linesWith(text string, parts ...string) string {
	var found []string
	for _, line := range strings.Split(text, "\n") {
		for _, part := range parts {
			if strings.Contains(line, part) {
				found = append(found, line)
				break
			}
		}
	}
	return strings.Join(found[:min(10, len(found))], "\n")
}
