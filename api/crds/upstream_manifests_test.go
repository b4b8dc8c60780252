// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

var (
	yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")
	// chartSpec matches rows like | customResources.nodeClass.default.spec | object | `{...}` | in a chart's table of values.
	chartSpec = regexp.MustCompile("(?m)^\\| customResources\\.(\\w+)\\.default\\.spec \\| object \\| `(.*?)` \\|")
)

// chartKinds are the objects that a chart creates from its values.
var chartKinds = map[string]struct{ apiVersion, kind string }{
	"nodeClass":    {v1alpha1.SchemeGroupVersion.String(), v1alpha1.ProxmoxNodeClassKind},
	"nodeTemplate": {v1alpha1.SchemeGroupVersion.String(), v1alpha1.ProxmoxUnmanagedTemplateKind},
	"nodePools":    {"karpenter.sh/v1", "NodePool"},
}

// checkUpstreamManifests applies the manifests in the documentation of the upstream provider, which defined these kinds.
// Users have copied them: the API server must accept each manifest unchanged, and the stored object must decode.
// SEEDS_DIR is the directory of the documents.
func checkUpstreamManifests(t *testing.T, api client.Client) {
	applied := map[string]int{}
	for name, text := range documents(t) {
		for i, block := range yamlBlock.FindAllSubmatch(text, -1) {
			manifest := &unstructured.Unstructured{}
			if err := yaml.Unmarshal(block[1], &manifest.Object); err != nil || manifest.GetKind() == "" {
				continue // not a manifest: a values file, a VM config
			}
			apply(t, api, fmt.Sprintf("%s, block %d", name, i+1), manifest)
			applied[manifest.GetKind()]++
		}
		for _, row := range chartSpec.FindAllSubmatch(text, -1) {
			apply(t, api, name+", values of "+string(row[1]), fromChart(t, string(row[1]), row[2]))
			applied["chart "+string(row[1])]++
		}
	}
	for _, kind := range []string{
		v1alpha1.ProxmoxNodeClassKind, v1alpha1.ProxmoxTemplateKind, v1alpha1.ProxmoxUnmanagedTemplateKind, "NodePool", "Secret",
		"chart nodeClass", "chart nodePools", "chart nodeTemplate",
	} {
		NewWithT(t).Expect(applied).To(HaveKey(kind), "the documents lack the test's input")
	}
}

func documents(t *testing.T) map[string][]byte {
	t.Helper()
	dir := os.Getenv("SEEDS_DIR")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "seeds")
	}
	g, out := NewWithT(t), map[string][]byte{}
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	g.Expect(err).NotTo(HaveOccurred())
	for _, path := range paths {
		text, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		out[filepath.Base(path)] = text
	}
	if len(out) == 0 {
		t.Skipf("no documents in %s: set SEEDS_DIR to the directory with the upstream documents", dir)
	}
	return out
}

func fromChart(t *testing.T, values string, spec []byte) *unstructured.Unstructured {
	t.Helper()
	g, fields := NewWithT(t), map[string]any{}
	g.Expect(chartKinds).To(HaveKey(values))
	g.Expect(json.Unmarshal(spec, &fields)).To(Succeed())
	kind := chartKinds[values]
	out := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kind.apiVersion, "kind": kind.kind, "spec": fields}}
	out.SetName("chart")
	if kind.kind == "NodePool" {
		// Karpenter's CRD requires the list, which the values of the chart omit: the chart's template adds it.
		g.Expect(unstructured.SetNestedSlice(out.Object, []any{}, "spec", "template", "spec", "requirements")).To(Succeed())
	}
	return out
}

// apply does the same as "kubectl apply --server-side --validate=strict" and decodes the stored object.
func apply(t *testing.T, api client.Client, where string, manifest *unstructured.Unstructured) {
	t.Helper()
	g := NewWithT(t)
	err := api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(manifest), client.FieldOwner("test"))
	g.Expect(err).NotTo(HaveOccurred(), where)
	typed, ours := map[string]client.Object{
		v1alpha1.ProxmoxNodeClassKind:         &v1alpha1.ProxmoxNodeClass{},
		v1alpha1.ProxmoxTemplateKind:          &v1alpha1.ProxmoxTemplate{},
		v1alpha1.ProxmoxUnmanagedTemplateKind: &v1alpha1.ProxmoxUnmanagedTemplate{},
		"NodePool":                            &karpv1.NodePool{},
	}[manifest.GetKind()]
	if !ours {
		return
	}
	g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(manifest.Object, typed, true)).To(Succeed(), where)
	g.Expect(typed.GetUID()).NotTo(BeEmpty(), where)
}
