// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// TestConfigurationFiles loads each configuration file with the code that reads it in the
// product.
func TestConfigurationFiles(t *testing.T) {
	t.Parallel()
	for kind, read := range map[string]func(path string) error{
		"yaml cloud-config": func(path string) error { _, err := proxmox.LoadConfig(path); return err },
		"json instance-types": func(path string) error {
			content, err := os.ReadFile(path)
			if err == nil {
				_, err = instancetype.Parse(content)
			}
			return err
		},
		"yaml scenario":      func(path string) error { _, err := pvesim.LoadScenario(path); return err },
		"json node-settings": func(path string) error { _, err := declared.LoadSettings(path); return err },
	} {
		for _, b := range blocks(t, kind) {
			err := read(write(t, b.content))
			expect(t, err == nil || isMissingFile(err), "%s: %v", b, err)
		}
	}
}

func write(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	testenv.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// isMissingFile reports whether a configuration names a file of the reader, such as
// /etc/proxmox/token.
func isMissingFile(err error) bool {
	return strings.Contains(err.Error(), "_file") && strings.Contains(err.Error(), "no such file")
}

// TestValues checks that the chart accepts values, and the controller the cloud config in them, which the chart passes on
// unchanged.
func TestValues(t *testing.T) {
	t.Parallel()
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Skip("HELM is not set: run this with make unit")
	}
	// Documents contain a placeholder instead of a certificate.
	whole := string(testenv.StartSimulator(t, pvesim.DefaultScenario(1), pvesim.Options{}).CAPEM())
	certificate, found := regexp.MustCompile(`(?s)-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----`), 0
	for _, b := range blocks(t, "yaml values") {
		cmd := exec.CommandContext(t.Context(), helm, "template", "docs", filepath.Join(root, "charts/karpenter-provider-proxmox"), "-f", "-")
		cmd.Stdin = strings.NewReader(b.content)
		out, err := cmd.CombinedOutput()
		expect(t, err == nil, "%s: %v\n%s", b, err, out)
		var values struct{ Config map[string]any }
		testenv.Must(t, yaml.Unmarshal([]byte(b.content), &values))
		if len(values.Config) == 0 {
			continue
		}
		found++
		config, err := json.Marshal(values.Config)
		testenv.Must(t, err)
		content := certificate.ReplaceAllString(string(config), strings.ReplaceAll(whole, "\n", `\n`))
		_, err = proxmox.LoadConfig(write(t, content))
		expect(t, err == nil || isMissingFile(err), "%s: %v", b, err)
	}
	expect(t, found >= 2, "found %d blocks with Proxmox clusters, want at least 2", found)
}
