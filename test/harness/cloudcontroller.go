// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

// CloudController is the Proxmox cloud controller manager in its own process.
type CloudController struct {
	process *process
}

// StartCloudController runs the cloud controller manager's binary as the administrator of a
// kubeconfig. Its files are in dir.
func StartCloudController(binary, dir, kubeconfig string, cluster Cluster) (*CloudController, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating directory of the cloud controller manager: %w", err)
	}
	// It knows neither a fingerprint nor a CA: it trusts the system's CAs.
	content, err := yaml.Marshal(map[string]any{"clusters": []map[string]any{{
		"region": cluster.Region, "url": cluster.URLs[0], "insecure": cluster.CA == "",
		"token_id": cluster.TokenID, "token_secret": cluster.TokenSecret,
	}}})
	if err != nil {
		return nil, fmt.Errorf("writing cloud config of the cloud controller manager: %w", err)
	}
	config, ca := filepath.Join(dir, "cloud-config.yaml"), filepath.Join(dir, "ca.pem")
	for path, text := range map[string]string{config: string(content), ca: cluster.CA} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("writing cloud config of the cloud controller manager: %w", err)
		}
	}
	cmd := exec.Command(binary, "--kubeconfig", kubeconfig, "--cloud-config", config, "--controllers", "cloud-node,cloud-node-lifecycle",
		"--node-monitor-period", "1s", "--leader-elect=false", "--secure-port=0", "--v=4")
	cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+ca)
	p, err := startProcess("cloud controller manager", filepath.Join(dir, "cloud-controller-manager.log"), cmd)
	if err != nil {
		return nil, err
	}
	return &CloudController{process: p}, nil
}

// Log returns the path of its log.
func (c *CloudController) Log() string { return c.process.log }

// Stop ends the process.
func (c *CloudController) Stop() { c.process.stop(10 * time.Second) }
