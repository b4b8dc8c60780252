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

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// expect reports an error unless a condition is true.
func expect(t *testing.T, condition bool, format string, args ...any) {
	t.Helper()
	if !condition {
		t.Errorf(format, args...)
	}
}

// read returns a file.
func read(t *testing.T, path ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	check(t, err)
	return content
}

// readGolden returns a rendered recipe from the golden files of internal/bootdata.
func readGolden(t *testing.T, name string) []byte {
	t.Helper()
	return read(t, "..", "..", "internal", "bootdata", "testdata", "golden", name)
}

// snippet is cloud-init's configuration of a recipe that has no boot data.
const snippet = "../proxmox-cloud-init/worker.cfg"

func compileSchema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	schema, err := jsonschema.NewCompiler().Compile(filepath.Join("schemas", name))
	check(t, err)
	return schema
}

func parseYAML(t *testing.T, content []byte) any {
	t.Helper()
	var value any
	check(t, yaml.Unmarshal(content, &value))
	return value
}

func TestCloudInitUserData(t *testing.T) {
	t.Parallel()
	cloudConfig := compileSchema(t, "schema-cloud-config-v1.json")
	for _, recipe := range []string{"defaults", "kubeadm", "k3s", "prepare"} {
		content := readGolden(t, recipe+".user-data")
		expect(t, strings.HasPrefix(string(content), "#cloud-config\n"), "%s: user-data does not start with #cloud-config", recipe)
		err := cloudConfig.Validate(parseYAML(t, content))
		expect(t, err == nil, "%s: %v", recipe, err)
	}
	check(t, cloudConfig.Validate(parseYAML(t, read(t, snippet))))
	if err := cloudConfig.Validate(parseYAML(t, []byte("write_files: [{path: /a, contnet: x}]"))); err == nil {
		t.Error("the schema accepts an unknown key")
	}
}

func TestCloudInitNetworkConfig(t *testing.T) {
	t.Parallel()
	network := compileSchema(t, "schema-network-config-v2.json")
	config := parseYAML(t, readGolden(t, "defaults.network-config"))
	if removed := removeNetplanKeys(config); removed == 0 {
		t.Error("there are no routes in other tables")
	}
	if err := network.Validate(config); err != nil {
		t.Error(err)
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
	check(t, err)
	_, err = config.Validate(cloud{})
	check(t, err)
	rules := map[string]bool{}
	for _, rule := range config.NetworkRoutingRuleConfigs() {
		rules[rule.Src().ValueOrZero().String()] = true
	}
	expect(t, rules["192.168.7.0/24"] && rules["2001:db8::/64"], "found routing rules for %v", rules)
	got := config.Machine().Kubelet().ExtraConfig()["providerID"]
	expect(t, got == "proxmox://region-1/20001", "found provider ID %v", got)
	rejected := strings.Replace(string(content), "extraConfig:\n", "extraConfig:\n      kind: KubeletConfiguration\n", 1)
	config, err = configloader.NewFromBytes([]byte(rejected))
	check(t, err)
	_, err = config.Validate(cloud{})
	expect(t, err != nil && strings.Contains(err.Error(), `"kind" can't be overridden`), "Talos accepts a kubelet config with a kind: %v", err)
}
