// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// checkHashes compares the hashes of fixed objects with those in their annotations. The API server sets defaults first: a new
// field with a default changes every stored object and its hash. A hash that changes under the same version replaces every
// Node of every user. So never edit a file of a version that was released: to change a hash, increment HashVersion and add
// files.
func checkHashes(t *testing.T, api client.Client) {
	t.Helper()

	files, err := filepath.Glob("testdata/hashes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}

	compared := map[string]bool{}

	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		manifest := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(raw, &manifest.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}

		want := manifest.GetAnnotations()

		if err := api.Create(t.Context(), manifest, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
			t.Errorf("%s: the API server no longer accepts it: %v", file, err)

			continue
		}

		version, got := hashesOf(t, manifest)
		if want[version] != v1alpha1.HashVersion {
			continue
		}

		compared[manifest.GetKind()] = true

		for key, hash := range got {
			if want[key] != hash {
				t.Errorf("%s: %s is %s, was %s: every node of this class would be replaced; if the change is intended, increment HashVersion", file, key, hash, want[key])
			}
		}
	}

	for _, kind := range []string{v1alpha1.ProxmoxNodeClassKind, v1alpha1.ProxmoxTemplateKind} {
		if !compared[kind] {
			t.Errorf("no file contains a %s with hashes of version %s", kind, v1alpha1.HashVersion)
		}
	}
}

// hashesOf returns the annotation key of an object's hash version, and its hashes by annotation key.
func hashesOf(t *testing.T, o *unstructured.Unstructured) (version string, hashes map[string]string) {
	t.Helper()

	decode := func(into any) {
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into); err != nil {
			t.Fatal(err)
		}
	}

	switch o.GetKind() {
	case v1alpha1.ProxmoxNodeClassKind:
		class := &v1alpha1.ProxmoxNodeClass{}
		decode(class)

		return v1alpha1.AnnotationNodeClassHashVersion, map[string]string{
			v1alpha1.AnnotationNodeClassHash: class.Hash(), v1alpha1.Group + "/proxmoxnodeinplaceupdate-hash": class.InPlaceHash(),
		}
	case v1alpha1.ProxmoxTemplateKind:
		template := &v1alpha1.ProxmoxTemplate{}
		decode(template)

		return "template-hash-version", map[string]string{"template-hash": template.Hash(), "template-inplace-hash": template.InPlaceHash()}
	default:
		t.Fatalf("the kind %s has no hash", o.GetKind())

		return "", nil
	}
}
