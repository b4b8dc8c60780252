// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

const upstreamDir = "testdata/upstream-0.4.9"

// TestUpstreamValues renders the chart with all values of the chart that it replaces, as
// "helm get values --all" prints them, except for the image, and for the memory overhead, whose
// default is another one.
func TestUpstreamValues(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(upstreamDir + "/values.yaml")
	check(t, err)
	values := strings.NewReplacer("repository: ghcr.io/sergelogvinov/karpenter-provider-proxmox, ", "", "  vmMemoryOverheadPercent: 0.075\n", "").Replace(string(content))
	rendered := render(t, values)
	defaults := render(t, "")
	for _, path := range []string{container + "}", podSpec + ".volumes}", podSpec + ".tolerations}"} {
		found, want := rendered.read(t, "Deployment", path), defaults.read(t, "Deployment", path)
		expect(t, found == want, "%s: found %s, want %s", path, found, want)
	}
}

// TestUpgradeFromUpstream runs the commands of docs/migration.md on an API server with a
// release of the other chart.
func TestUpgradeFromUpstream(t *testing.T) {
	t.Parallel()
	config := testenv.APIServer(t)
	kube, err := client.New(config, client.Options{})
	check(t, err)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	check(t, harness.WriteKubeconfig(kubeconfig, config))
	run := func(values string, args ...string) error {
		t.Helper()
		_, err := helm(t, values, append(args, "--kubeconfig", kubeconfig)...)
		return err
	}
	const values = `
config: {clusters: [{region: cluster-1, url: "https://pve1.example.com:8006/api2/json", insecure: false, token_id: kubernetes@pve!karpenter, token_secret: key}]}
logVerbosityLevel: debug
settings: {featureGates: {nodeRepair: true}}
`
	check(t, run(values, "install", release, upstreamDir, "-n", namespace, "-f", "-"))

	err = run("", "upgrade", release, chartDir, "-n", namespace, "--skip-crds", "--reuse-values")
	if want := "at '/image/repository': value must be 'ghcr.io/karpenter-proxmox/karpenter-provider-proxmox, or a copy of it: upgrade with --reset-then-reuse-values, not with --reuse-values'"; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "nil pointer") {
		t.Errorf("with --reuse-values: found %v, want %q", err, want)
	}

	for _, command := range documentedCommands(t, "../../docs/migration.md") {
		check(t, run("", command...))
	}
	get := func(name string, object client.Object) error {
		return kube.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)
	}
	g, deployment, secret, role := NewWithT(t), &appsv1.Deployment{}, &corev1.Secret{}, &rbacv1.Role{}
	g.Expect(get(release, deployment)).To(Succeed())
	g.Expect(deployment.Spec.Template.Spec.Containers).To(ConsistOf(And(
		HaveField("Image", "ghcr.io/karpenter-proxmox/karpenter-provider-proxmox:v0.0.0-dev"), HaveField("Args", ContainElement("--log-level=debug")))))
	g.Expect(get(release, secret)).To(Succeed())
	g.Expect(secret.Data["config.yaml"]).To(ContainSubstring("region: cluster-1"))
	g.Expect(get(release+":bootstrap", role)).To(MatchError(apierrors.IsNotFound, "the Role of the other chart is deleted"))
	g.Expect(get(release+"-boot-data", role)).To(Succeed())
	g.Expect(role.Rules[0].ResourceNames).To(Equal([]string{"my-templates", "my-values"}))
	for _, command := range documentedCommands(t, "../../docs/upgrade.md") {
		check(t, run("", command...))
	}
}

// documentedCommands returns the arguments of the helm commands of a page, with the charts of
// this repository.
func documentedCommands(t *testing.T, page string) [][]string {
	t.Helper()
	content, err := os.ReadFile(page)
	check(t, err)
	var commands [][]string
	for _, command := range regexp.MustCompile(`(?m)^ *helm (upgrade (?:.*\\\n)*.*)$`).FindAllStringSubmatch(string(content), -1) {
		line := strings.NewReplacer("\\\n", " ", "'", "", "oci://ghcr.io/karpenter-proxmox/charts", "../../charts").Replace(command[1])
		commands = append(commands, strings.Fields(line))
	}
	if len(commands) != 2 {
		t.Fatalf("found %d helm commands in %s, want 2", len(commands), page)
	}
	return commands
}
