// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instancetype"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// TestConfigurationFilesAreRead hands each to the code that reads it in the controller.
func TestConfigurationFilesAreRead(t *testing.T) {
	t.Parallel()
	for kind, read := range map[string]func(path string) error{
		"yaml cloud-config":   func(path string) error { _, err := proxmox.LoadConfig(path); return err },
		"json instance-types": func(path string) error { _, err := instancetype.Load(path); return err },
		"yaml scenario":       func(path string) error { _, err := pvesim.LoadScenario(path); return err },
		"json node-settings":  func(path string) error { _, err := inventory.LoadSettings(path); return err },
	} {
		for _, b := range blocks(t, kind) {
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte(b.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := read(path); err != nil && !namesAFileOfTheReader(err) {
				t.Errorf("%s: %v", b, err)
			}
		}
	}
}

// namesAFileOfTheReader: a document may name /etc/proxmox/token, which is not here.
func namesAFileOfTheReader(err error) bool {
	return strings.Contains(err.Error(), "_file") && strings.Contains(err.Error(), "no such file")
}

func TestValuesRender(t *testing.T) {
	t.Parallel()
	helm := os.Getenv("HELM")
	if helm == "" {
		t.Skip("HELM names no helm binary: run this with make unit")
	}
	for _, b := range blocks(t, "yaml values") {
		cmd := exec.CommandContext(t.Context(), helm, "template", "docs", filepath.Join(root, "charts/karpenter-provider-proxmox"), "-f", "-")
		cmd.Stdin = strings.NewReader(b.content)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", b, err, out)
		}
	}
}
