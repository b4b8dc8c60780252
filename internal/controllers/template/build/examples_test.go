// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"io/fs"
	"os"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// The examples and the manifests in the documentation are valid.
func TestExampleManifests(t *testing.T) {
	t.Parallel()
	w := testenv.New(t)
	var documents []string
	files, err := fs.Glob(examples.Files, "templates/*.yaml")
	w.Expect(err).NotTo(HaveOccurred())
	for _, file := range files {
		content, err := examples.Files.ReadFile(file)
		w.Expect(err).NotTo(HaveOccurred())
		documents = append(documents, strings.Split(string(content), "\n---\n")...)
	}
	page, err := os.ReadFile("../../../../docs/templates.md")
	w.Expect(err).NotTo(HaveOccurred())
	for _, block := range strings.Split(string(page), "```yaml\n")[1:] {
		manifest, _, _ := strings.Cut(block, "```")
		documents = append(documents, manifest)
	}
	w.Expect(len(documents)).To(BeNumerically(">=", 5))
	for _, document := range documents {
		object := &unstructured.Unstructured{}
		w.Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
		object.SetName(w.Named(object.GetName()))
		w.Expect(w.Kube.Create(t.Context(), object, client.DryRunAll, client.FieldValidation("Strict"))).To(Succeed(), document)
	}
}
