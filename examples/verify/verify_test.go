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

// golden reads a recipe as the renderer's own tests have it.
func golden(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "internal", "bootdata", "testdata", "golden", name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func compile(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("schemas", name))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func parse(t *testing.T, content []byte) any {
	t.Helper()
	var value any
	if err := yaml.Unmarshal(content, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestCloudInitAcceptsTheRecipes(t *testing.T) {
	t.Parallel()
	cloudConfig := compile(t, "schema-cloud-config-v1.json")
	for _, recipe := range []string{"defaults", "kubeadm", "k3s", "rke2"} {
		content := golden(t, recipe+".user-data")
		if !strings.HasPrefix(string(content), "#cloud-config\n") {
			t.Errorf("%s: user-data does not begin as cloud-init wants", recipe)
		}
		if err := cloudConfig.Validate(parse(t, content)); err != nil {
			t.Errorf("%s: %v", recipe, err)
		}
	}
	snippet, err := os.ReadFile(filepath.Join("..", "proxmox-cloud-init", "worker.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cloudConfig.Validate(parse(t, snippet)); err != nil {
		t.Errorf("the snippet: %v", err)
	}
	if err := cloudConfig.Validate(parse(t, []byte("write_files: [{path: /a, contnet: x}]"))); err == nil {
		t.Error("the schema lets a typo pass: it checks nothing")
	}
}

func TestCloudInitAcceptsTheNetworkConfig(t *testing.T) {
	t.Parallel()
	network := compile(t, "schema-network-config-v2.json")
	for _, recipe := range []string{"defaults", "kubeadm", "k3s", "rke2", "talos"} {
		if err := network.Validate(parse(t, golden(t, recipe+".network-config"))); err != nil {
			t.Errorf("%s: %v", recipe, err)
		}
	}
	if err := network.Validate(parse(t, []byte("{version: 2, ethernets: {eth0: {dhcp4: [1]}}}"))); err == nil {
		t.Error("the schema lets a list pass for a switch: it checks nothing")
	}
}

// cloud is how Talos runs on the nocloud platform: nothing is installed, the image
// is on the disk.
type cloud struct{}

func (cloud) String() string        { return "cloud" }
func (cloud) RequiresInstall() bool { return false }
func (cloud) InContainer() bool     { return false }

func TestTalosAcceptsTheRecipe(t *testing.T) {
	t.Parallel()
	content := golden(t, "talos.user-data")
	config, err := configloader.NewFromBytes(content)
	if err != nil {
		t.Fatal(err)
	}
	warnings, err := config.Validate(cloud{})
	if err != nil {
		t.Fatal(err)
	}
	for _, warning := range warnings {
		t.Logf("Talos warns: %s", warning)
	}
	if got := config.Machine().Kubelet().ExtraConfig()["providerID"]; got != "proxmox://region-1/20001" {
		t.Errorf("the kubelet's provider ID is %v", got)
	}
	refused := strings.Replace(string(content), "extraConfig:\n", "extraConfig:\n      kind: KubeletConfiguration\n", 1)
	config, err = configloader.NewFromBytes([]byte(refused))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := config.Validate(cloud{}); err == nil || !strings.Contains(err.Error(), `"kind" can't be overridden`) {
		t.Errorf("Talos takes the kubelet's config with a kind (%v): the renderer need not refuse it", err)
	}
}
