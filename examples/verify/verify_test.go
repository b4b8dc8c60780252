// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"go.yaml.in/yaml/v4"
)

// readGolden returns a rendered recipe from the golden files of internal/bootdata.
func readGolden(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "internal", "bootdata", "testdata", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func compileSchema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("schemas", name))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func parseYAML(t *testing.T, content []byte) any {
	t.Helper()
	var value any
	if err := yaml.Unmarshal(content, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestCloudInitUserData(t *testing.T) {
	t.Parallel()
	cloudConfig := compileSchema(t, "schema-cloud-config-v1.json")
	for _, recipe := range []string{"defaults", "kubeadm", "k3s", "rke2", "kubeadm-prepare", "k3s-prepare", "rke2-prepare"} {
		content := readGolden(t, recipe+".user-data")
		if !strings.HasPrefix(string(content), "#cloud-config\n") {
			t.Errorf("%s: user-data does not start with #cloud-config", recipe)
		}
		if err := cloudConfig.Validate(parseYAML(t, content)); err != nil {
			t.Errorf("%s: %v", recipe, err)
		}
	}
	snippet, err := os.ReadFile(filepath.Join("..", "proxmox-cloud-init", "worker.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cloudConfig.Validate(parseYAML(t, snippet)); err != nil {
		t.Errorf("worker.cfg: %v", err)
	}
	if err := cloudConfig.Validate(parseYAML(t, []byte("write_files: [{path: /a, contnet: x}]"))); err == nil {
		t.Error("the schema accepts an unknown key")
	}
}

func TestCloudInitNetworkConfig(t *testing.T) {
	t.Parallel()
	network := compileSchema(t, "schema-network-config-v2.json")
	for _, recipe := range []string{"defaults", "kubeadm", "k3s", "rke2", "talos"} {
		if err := network.Validate(parseYAML(t, readGolden(t, recipe+".network-config"))); err != nil {
			t.Errorf("%s: %v", recipe, err)
		}
	}
	if err := network.Validate(parseYAML(t, []byte("{version: 2, ethernets: {eth0: {dhcp4: [1]}}}"))); err == nil {
		t.Error("the schema accepts a list for dhcp4")
	}
}

// cloud is the runtime mode of the nocloud platform, which needs no installation.
type cloud struct{}

func (cloud) String() string        { return "cloud" }
func (cloud) RequiresInstall() bool { return false }
func (cloud) InContainer() bool     { return false }

func TestTalosMachineConfig(t *testing.T) {
	t.Parallel()
	content := readGolden(t, "talos.user-data")
	config, err := configloader.NewFromBytes(content)
	if err != nil {
		t.Fatal(err)
	}
	warnings, err := config.Validate(cloud{})
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range warnings {
		t.Logf("warning: %s", warning)
	}
	if got := config.Machine().Kubelet().ExtraConfig()["providerID"]; got != "proxmox://region-1/20001" {
		t.Errorf("found provider ID %v", got)
	}
	rejected := strings.Replace(string(content), "extraConfig:\n", "extraConfig:\n      kind: KubeletConfiguration\n", 1)
	config, err = configloader.NewFromBytes([]byte(rejected))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.Validate(cloud{}); err == nil || !strings.Contains(err.Error(), `"kind" can't be overridden`) {
		t.Errorf("Talos accepts a kubelet config with a kind: %v", err)
	}
}
