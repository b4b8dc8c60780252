// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// TestManifestsApply sends every manifest of documents and examples to a real API server as a
// dry run.
func TestManifestsApply(t *testing.T) {
	t.Parallel()
	api, err := client.New(testenv.APIServer(t), client.Options{})
	testenv.Must(t, err)
	api = client.WithFieldValidation(client.NewDryRunClient(api), metav1.FieldValidationStrict)
	manifests := blocks(t, "yaml")
	for _, path := range files(t, "examples", ".yaml") {
		manifests = append(manifests, block{file: strings.TrimPrefix(path, root+"/"), line: 1, content: read(t, path)})
	}
	for _, b := range manifests {
		t.Run(b.String(), func(t *testing.T) {
			t.Parallel()
			for _, object := range decode(t, b) {
				if object.GetAPIVersion() == "" || object.GetKind() == "" {
					t.Errorf("a document has no apiVersion or kind: complete it, or declare the kind of the block (see doc.go)")
					continue
				}
				err := api.Create(t.Context(), object)
				expect(t, err == nil, "%s %s: %v", object.GetKind(), object.GetName(), err)
			}
		})
	}
}

// TestPartsParse checks that parts of manifests are valid YAML.
func TestPartsParse(t *testing.T) {
	t.Parallel()
	for _, b := range blocks(t, "yaml part") {
		expect(t, len(decode(t, b)) != 0, "%s: the block is empty", b)
	}
}

func decode(t *testing.T, b block) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(b.content)), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%s: %v", b, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		if object.GetNamespace() == "" && object.GetKind() != "" {
			object.SetNamespace(namespaceOf(object.GetKind()))
		}
		all = append(all, object)
	}
}

// namespaceOf returns the namespace that kubectl would use for an object without one.
func namespaceOf(kind string) string {
	switch kind {
	case "Deployment", "Pod", "Secret", "ConfigMap", "Service", "ServiceAccount", "DaemonSet", "StatefulSet", "PodDisruptionBudget":
		return metav1.NamespaceDefault
	}
	return ""
}
