// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// InstallChart installs or upgrades the chart in a directory as a release in kube-system,
// without its CRDs. It returns helm's output if helm fails.
func (p *Plane) InstallChart(ctx context.Context, helm, chart, release string, values map[string]any) error {
	content, err := yaml.Marshal(values)
	if err != nil {
		return fmt.Errorf("encoding chart values: %w", err)
	}
	home, err := os.MkdirTemp("", "helm-")
	if err != nil {
		return fmt.Errorf("creating helm's directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(home) }()
	cmd := exec.CommandContext(ctx, helm, "upgrade", "--install", release, chart,
		"--namespace", metav1.NamespaceSystem, "--skip-crds", "--values", "-")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig, "HELM_CONFIG_HOME="+home, "HELM_CACHE_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stdin = bytes.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("installing chart: %w\n%s", err, out)
	}
	return nil
}
