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
		config := parseYAML(t, readGolden(t, recipe+".network-config"))
		if removed := removeNetplanKeys(config); removed == 0 {
			t.Errorf("%s has no routes in other tables", recipe)
		}
		if err := network.Validate(config); err != nil {
			t.Errorf("%s: %v", recipe, err)
		}
	}
	if err := network.Validate(parseYAML(t, []byte("{version: 2, ethernets: {eth0: {dhcp4: [1]}}}"))); err == nil {
		t.Error("the schema accepts a list for dhcp4")
	}
}

// removeNetplanKeys removes the keys of routes that cloud-init's schema does not have. cloud-init passes them to netplan
// unchanged. It returns their number.
func removeNetplanKeys(config any) (removed int) {
	switch value := config.(type) {
	case map[string]any:
		for key, inner := range value {
			routes, isList := inner.([]any)
			if key != "routes" || !isList {
				removed += removeNetplanKeys(inner)
				continue
			}
			for _, route := range routes {
				fields, _ := route.(map[string]any)
				for _, netplan := range []string{"table", "scope", "on-link"} {
					if _, has := fields[netplan]; has {
						removed++
						delete(fields, netplan)
					}
				}
			}
		}
	case []any:
		for _, inner := range value {
			removed += removeNetplanKeys(inner)
		}
	}
	return removed
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
	rules := map[string]bool{}
	for _, rule := range config.NetworkRoutingRuleConfigs() {
		rules[rule.Src().ValueOrZero().String()] = true
	}
	if !rules["192.168.7.0/24"] || !rules["2001:db8::/64"] {
		t.Errorf("found routing rules for %v", rules)
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
