// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// rootPassword is like nothing else that a text could show.
const rootPassword = "correct-horse-battery-staple"

const releaseName = "karpenter-provider-proxmox"

// TestInstalledWithHelm: what the chart installs suffices, rights included, for
// a Node to come and go; an upgrade keeps it; and no secret shows anywhere.
func TestInstalledWithHelm(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it installs the release again and again"))
	w := newWorld(t, setup{idle: true, hosts: 2, scenario: func(s *pvesim.Scenario) {
		i := slices.IndexFunc(s.Users, func(u pvesim.User) bool { return u.ID == "root@pam" })
		s.Users[i].Password = rootPassword
	}})
	// A kubeplane lets Nodes join by itself; here that is the chart's part.
	for _, name := range []string{"kubeplane:node-bootstrapper", "kubeplane:node-autoapprove-bootstrap"} {
		must(t, w.kube.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	// All kinds of secrets at once: a token, root's login, values and templates of boot data.
	cluster := w.proxmox.Cluster(w.region)
	cluster.Root = &harness.RootLogin{Username: "root@pam", Password: rootPassword}
	w.secrets.Add("the password of root", rootPassword)
	// The values file that people were told to write, with this Proxmox in it.
	values := map[string]any{
		"logVerbosityLevel": "debug", "config": map[string]any{"clusters": []harness.Cluster{cluster}},
		"nodeSelector": map[string]any{"node-role.kubernetes.io/control-plane": ""},
		"tolerations":  []any{map[string]any{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}},
	}
	w.helm(t, values)
	w.runInstalled(t)
	p := w.newPool(t, "installed", func(kit *harness.Kit) {
		kit.Values.StringData["sshAuthorizedKeys"] = "ssh-ed25519 AAAA-a-value-of-a-secret-" + t.Name()
		kit.Values.StringData["unused"] = "a value that no template uses, " + t.Name()
		// Root is asked for what no token may do.
		kit.Class.Spec.CPU = &v1alpha1.CPULayout{Pinning: v1alpha1.PinningExclusive}
	})
	p.run(t, 1)
	p.podsRun(t, 1)
	claim := p.onlyClaim(t, "is settled", settled)
	launching, err := w.controller.MetricNames(t.Context())
	must(t, err)

	values["replicaCount"] = 2
	values["settings"] = map[string]any{"proxmoxPollInterval": "1s", "featureGates": map[string]any{"nodeRepair": true}}
	values["metrics"] = map[string]any{"enabled": true}
	w.helm(t, values)
	w.controller.Stop()
	w.runInstalled(t)
	t.Run("an upgrade keeps the Node", func(t *testing.T) {
		still := p.onlyClaim(t, "is the same", func(found *karpv1.NodeClaim) error {
			if found.UID != claim.UID {
				return fmt.Errorf("it is %s, was %s", found.Name, claim.Name)
			}
			return settled(found)
		})
		if still.Status.ProviderID != claim.Status.ProviderID {
			t.Errorf("the Node became %s, was %s", still.Status.ProviderID, claim.Status.ProviderID)
		}
	})
	// Before all is gone: objects of the claim must not carry secrets either.
	t.Run("no secret shows", func(t *testing.T) {
		w.noSecretShows(t)
		for _, what := range []string{
			"the token of the cloud config", "the password of root", "token-secret", "installed-values/sshAuthorizedKeys", "installed-values/unused", "installed-templates/user-data",
			releaseName + "/config.yaml",
		} {
			if !slices.ContainsFunc(w.secrets.Known(), func(known string) bool { return strings.HasSuffix(known, what) }) {
				t.Errorf("%s was not looked for, only %q", what, w.secrets.Known())
			}
		}
	})
	p.giveBack(t, claim)
	t.Run("no secret shows afterwards", w.noSecretShows)
	t.Run("the reference page names the metrics", func(t *testing.T) {
		removing, err := w.controller.MetricNames(t.Context())
		must(t, err)
		metricsAreOnThePage(t, slices.Concat(launching, removing))
	})
	t.Run("the log follows the claim by one key", func(t *testing.T) { w.logFollows(t, claim) })
	if log := w.logOf(t); strings.Contains(log, "forbidden") || strings.Contains(log, "cannot list") {
		t.Errorf("the chart's rights do not suffice:\n%s", linesWith(log, "forbidden", "cannot list"))
	}
}

// helm installs or upgrades the chart, with these values.
func (w *world) helm(t *testing.T, values map[string]any) {
	t.Helper()
	binary := os.Getenv("HELM")
	if binary == "" {
		t.Skip("SKIPPED: HELM must name the helm binary; make e2e builds it and sets it")
	}
	content, err := yaml.Marshal(values)
	must(t, err)
	cmd := exec.CommandContext(t.Context(), binary, "upgrade", "--install", releaseName, "../../charts/karpenter-provider-proxmox",
		"--namespace", metav1.NamespaceSystem, "--skip-crds", "--values", "-")
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "KUBECONFIG="+w.plane.Kubeconfig, "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stdin = bytes.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("helm: %v\n%s", err, out)
	}
}

// runInstalled starts the controller as the Deployment says.
func (w *world) runInstalled(t *testing.T) {
	t.Helper()
	_, binary := binaries(t)
	var err error
	w.controller, err = harness.Installed(t.Context(), w.plane, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: releaseName},
		harness.ControllerOptions{Binary: binary, Dir: filepath.Join(w.dir, "installed")})
	must(t, err)
	w.logs = append(w.logs, w.controller.Log())
	t.Cleanup(w.controller.Stop)
	must(t, w.controller.Start(t.Context()))
}

func (w *world) logOf(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(w.controller.Log())
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
