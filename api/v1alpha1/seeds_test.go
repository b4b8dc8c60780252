// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

var (
	yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")
	// chartSpec finds rows like | customResources.nodeClass.default.spec | object | `{...}` | in a chart's table of values.
	chartSpec = regexp.MustCompile("(?m)^\\| customResources\\.(\\w+)\\.default\\.spec \\| object \\| `(.*?)` \\|")
)

// The documents of the product that these kinds come from are in their users' hands: what they show must decode.
// SEEDS_DIR names the directory that holds them.
func TestManifestsInCirculationDecode(t *testing.T) {
	t.Parallel()

	dir := os.Getenv("SEEDS_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "seeds")
	}

	documents, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		t.Fatal(err)
	}

	if len(documents) == 0 {
		t.Skipf("no documents in %s: set SEEDS_DIR to the directory with the original documents", dir)
	}

	decoded := map[string]int{}

	for _, document := range documents {
		text, err := fs.ReadFile(os.DirFS(filepath.Dir(document)), filepath.Base(document))
		if err != nil {
			t.Fatal(err)
		}

		for _, block := range yamlBlock.FindAllSubmatch(text, -1) {
			if kind := decodeManifest(t, document, block[1]); kind != "" {
				decoded[kind]++
			}
		}

		for _, row := range chartSpec.FindAllSubmatch(text, -1) {
			decodeChartSpec(t, document, string(row[1]), row[2])
			decoded["chart "+string(row[1])]++
		}
	}

	for _, kind := range []string{
		v1alpha1.ProxmoxNodeClassKind, v1alpha1.ProxmoxTemplateKind, v1alpha1.ProxmoxUnmanagedTemplateKind, "NodePool",
		"chart nodeClass", "chart nodePools", "chart nodeTemplate",
	} {
		if decoded[kind] == 0 {
			t.Errorf("the documents in %s show no %s: the test has lost its input", dir, kind)
		}
	}
}

func decodeManifest(t *testing.T, document string, manifest []byte) (kind string) {
	t.Helper()

	var header struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal(manifest, &header); err != nil {
		return "" // not a manifest: a values file, a VM config
	}

	object, known := map[string]runtime.Object{
		v1alpha1.ProxmoxNodeClassKind:         &v1alpha1.ProxmoxNodeClass{},
		v1alpha1.ProxmoxTemplateKind:          &v1alpha1.ProxmoxTemplate{},
		v1alpha1.ProxmoxUnmanagedTemplateKind: &v1alpha1.ProxmoxUnmanagedTemplate{},
		"NodePool":                            &karpv1.NodePool{},
	}[header.Kind]
	if !known {
		return ""
	}

	if err := yaml.UnmarshalStrict(manifest, object); err != nil {
		t.Errorf("%s: decoding the %s: %v", filepath.Base(document), header.Kind, err)
	}

	return header.Kind
}

func decodeChartSpec(t *testing.T, document, name string, spec []byte) {
	t.Helper()

	into, known := map[string]any{
		"nodeClass":    &v1alpha1.ProxmoxNodeClassSpec{},
		"nodeTemplate": &v1alpha1.ProxmoxUnmanagedTemplateSpec{},
		"nodePools":    &karpv1.NodePoolSpec{},
	}[name]
	if !known {
		t.Errorf("%s: unknown custom resource %s", filepath.Base(document), name)

		return
	}

	if !json.Valid(spec) {
		t.Errorf("%s: the spec of %s is no JSON", filepath.Base(document), name)
	}

	if err := yaml.UnmarshalStrict(spec, into); err != nil {
		t.Errorf("%s: decoding the spec of %s: %v", filepath.Base(document), name, err)
	}
}
