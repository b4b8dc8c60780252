// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
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
	g := NewWithT(t)
	files, err := filepath.Glob("testdata/hashes/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	compared := map[string]bool{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		manifest := &unstructured.Unstructured{}
		g.Expect(yaml.UnmarshalStrict(raw, &manifest.Object)).To(Succeed(), file)
		want := manifest.GetAnnotations()
		g.Expect(api.Create(t.Context(), manifest, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed(), file)
		version, got := hashesOf(g, manifest)
		if want[version] != v1alpha1.HashVersion {
			continue
		}
		compared[manifest.GetKind()] = true
		for key, hash := range got {
			g.Expect(hash).To(Equal(want[key]), "%s: %s changed, so every node of this class would be replaced; "+
				"if the change is intended, increment HashVersion", file, key)
		}
	}
	g.Expect(compared).To(HaveLen(2), "a file with hashes of version %s for each kind", v1alpha1.HashVersion)
}

// hashesOf returns the annotation key of an object's hash version, and its hashes by annotation key.
func hashesOf(g Gomega, o *unstructured.Unstructured) (version string, hashes map[string]string) {
	decode := func(into any) {
		g.Expect(runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, into)).To(Succeed())
	}
	if o.GetKind() == v1alpha1.ProxmoxNodeClassKind {
		class := &v1alpha1.ProxmoxNodeClass{}
		decode(class)
		return v1alpha1.AnnotationNodeClassHashVersion, map[string]string{
			v1alpha1.AnnotationNodeClassHash: class.Hash(), v1alpha1.Group + "/proxmoxnodeinplaceupdate-hash": class.InPlaceHash(),
		}
	}
	template := &v1alpha1.ProxmoxTemplate{}
	decode(template)
	return "template-hash-version", map[string]string{"template-hash": template.Hash(), "template-inplace-hash": template.InPlaceHash()}
}
