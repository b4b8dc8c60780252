// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/cmd/containerd/server/config"
	_ "github.com/containerd/containerd/v2/plugins/cri/runtime" // registers the plugin whose configuration is checked
	"github.com/containerd/containerd/v2/version"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/pelletier/go-toml/v2"
	"github.com/vincent-petithory/dataurl"
	"go.yaml.in/yaml/v4"
)

const (
	containerdFile = "/etc/containerd/config.toml"
	// oldPlugin and newPlugin are the IDs of the CRI plugin in containerd 1 and 2.
	oldPlugin, newPlugin = "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"
)

// criConfig is the part of the CRI plugin's configuration that the recipes set. The keys
// are the same in containerd 1 and 2, except for the directories of network plugins.
type criConfig struct {
	Containerd struct {
		DefaultRuntime string `toml:"default_runtime_name"`
		Runtimes       map[string]struct {
			Type    string         `toml:"runtime_type"`
			Options map[string]any `toml:"options"`
		} `toml:"runtimes"`
	} `toml:"containerd"`
	CNI struct {
		BinDir  string   `toml:"bin_dir"`
		BinDirs []string `toml:"bin_dirs"`
		ConfDir string   `toml:"conf_dir"`
	} `toml:"cni"`
}

// problems compares the configuration with what the kubelet of the recipes and network
// add-ons need.
func (c criConfig) problems() (out []string) {
	runtime := c.Containerd.Runtimes["runc"]
	if runtime.Type != "io.containerd.runc.v2" {
		out = append(out, "the runtime type is "+runtime.Type)
	}
	if runtime.Options["SystemdCgroup"] != true {
		out = append(out, "SystemdCgroup is not true, but the kubelet's cgroupDriver is systemd")
	}
	if dirs := append(c.CNI.BinDirs, c.CNI.BinDir); !slices.Contains(dirs, "/opt/cni/bin") {
		out = append(out, fmt.Sprintf("network plugins are not in /opt/cni/bin but in %v", dirs))
	}
	if c.CNI.ConfDir != "/etc/cni/net.d" {
		out = append(out, "the configuration of the network is in "+c.CNI.ConfDir)
	}
	return out
}

// recode converts between types by their TOML. It fails for keys that the new type does not
// have if it is strict.
func recode(t *testing.T, from, to any, strict bool) {
	t.Helper()
	content, err := toml.Marshal(from)
	check(t, err)
	decoder := toml.NewDecoder(bytes.NewReader(content))
	if strict {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(to); err != nil {
		t.Fatalf("%v\n%s", err, content)
	}
}

// containerd1 returns the configuration of the plugin as it is in the file.
func containerd1(t *testing.T, content []byte) (out criConfig) {
	t.Helper()
	var file struct {
		Version int
		Imports []string
		Plugins map[string]any
	}
	check(t, toml.NewDecoder(bytes.NewReader(content)).DisallowUnknownFields().Decode(&file))
	expect(t, file.Version == 2, "found version %d; containerd 1 reads 2", file.Version)
	configured, ok := file.Plugins[oldPlugin]
	if !ok {
		t.Fatalf("found no configuration of the plugin %s", oldPlugin)
	}
	recode(t, configured, &out, true)
	return out
}

// containerd2 returns the complete configuration of the plugin, which containerd 2 migrates
// to its own version and merges with its defaults.
func containerd2(t *testing.T, content []byte) (out criConfig) {
	t.Helper()
	directory := t.TempDir()
	path := filepath.Join(directory, "config.toml")
	content = bytes.ReplaceAll(content, []byte("/etc/containerd/"), []byte(directory+"/")) // imports
	check(t, os.WriteFile(path, content, 0o600))
	registered := registry.Graph(func(*plugin.Registration) bool { return false })
	file := config.Config{Version: version.ConfigVersion}
	plugins := func() iter.Seq[plugin.Registration] { return slices.Values(registered) }
	check(t, config.LoadConfigWithPlugins(t.Context(), path, plugins, &file))
	i := slices.IndexFunc(registered, func(r plugin.Registration) bool { return r.URI() == newPlugin })
	if i < 0 {
		t.Fatalf("containerd has no plugin %s", newPlugin)
	}
	merged := reflect.New(reflect.TypeOf(registered[i].Config).Elem()).Interface()
	recode(t, registered[i].Config, merged, true)
	if configured, ok := file.Plugins[newPlugin]; ok {
		recode(t, configured, merged, true)
	}
	recode(t, merged, &out, false)
	return out
}

// TestContainerdConfiguration checks the files of the recipes that write one. Flatcar's own file has
// the same settings; k3s, RKE2 and Talos contain containerd and configure it.
func TestContainerdConfiguration(t *testing.T) {
	t.Parallel()
	for recipe, content := range map[string][]byte{
		"kubeadm":       cloudInitFile(t, readGolden(t, "kubeadm.user-data"), containerdFile),
		"worker.cfg":    cloudInitFile(t, read(t, snippet), containerdFile),
		"fedora-coreos": ignitionFile(t, readGolden(t, "fedora-coreos.user-data"), containerdFile),
	} {
		for version, parse := range map[string]func(*testing.T, []byte) criConfig{"containerd 1": containerd1, "containerd 2": containerd2} {
			for _, problem := range parse(t, content).problems() {
				t.Errorf("%s, %s: %s", recipe, version, problem)
			}
		}
	}
	if problems := containerd2(t, []byte("version = 2\n")).problems(); len(problems) == 0 {
		t.Error("the defaults of containerd are accepted")
	}
}

// cloudInitFile returns a file that cloud-init writes.
func cloudInitFile(t *testing.T, userData []byte, path string) []byte {
	t.Helper()
	var content struct {
		WriteFiles []struct{ Path, Content string } `yaml:"write_files"`
	}
	check(t, yaml.Unmarshal(userData, &content))
	for _, file := range content.WriteFiles {
		if file.Path == path {
			return []byte(file.Content)
		}
	}
	t.Fatalf("no file %s in the recipe", path)
	return nil
}

// ignitionFile returns a file that Ignition writes.
func ignitionFile(t *testing.T, userData []byte, path string) []byte {
	t.Helper()
	var content ignitionConfig
	check(t, json.Unmarshal(userData, &content))
	for _, file := range content.Storage.Files {
		if file.Path != path {
			continue
		}
		decoded, err := dataurl.DecodeString(file.Contents.Source)
		check(t, err)
		if file.Contents.Compression != "gzip" {
			return decoded.Data
		}
		reader, err := gzip.NewReader(bytes.NewReader(decoded.Data))
		check(t, err)
		inflated, err := io.ReadAll(reader)
		check(t, err)
		return inflated
	}
	t.Fatalf("no file %s in the recipe", path)
	return nil
}
