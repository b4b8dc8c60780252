// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
)

func TestAll(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	all, err := crds.All()
	g.Expect(err).NotTo(HaveOccurred())
	var names []string
	for _, crd := range all {
		names = append(names, crd.Name)
	}
	g.Expect(names).To(ContainElements(
		"proxmoxnodeclasses.karpenter.proxmox.sinextra.dev", "proxmoxtemplates.karpenter.proxmox.sinextra.dev",
		"proxmoxunmanagedtemplates.karpenter.proxmox.sinextra.dev", "nodepools.karpenter.sh", "nodeclaims.karpenter.sh",
		"nodeoverlays.karpenter.sh", "capacitybuffers.autoscaling.x-k8s.io",
	))

	for _, dir := range []string{"karpenter-provider-proxmox/crds", "karpenter-provider-proxmox-crd/templates"} {
		shipped := map[string]*apiextensionsv1.CustomResourceDefinition{}
		files, err := filepath.Glob(filepath.Join("..", "..", "charts", dir, "*.yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		for _, file := range files {
			data, err := os.ReadFile(file)
			g.Expect(err).NotTo(HaveOccurred())
			crd := &apiextensionsv1.CustomResourceDefinition{}
			g.Expect(yaml.UnmarshalStrict(data, crd)).To(Succeed(), file)
			g.Expect(crd.Annotations).To(HaveKeyWithValue("helm.sh/resource-policy", "keep"), "%s: helm uninstall would delete the CRD and all VMs", file)
			shipped[crd.Name] = crd
		}
		g.Expect(shipped).To(HaveLen(len(all)), dir)
		for _, crd := range all {
			if got := shipped[crd.Name]; got == nil || !equality.Semantic.DeepEqual(got.Spec, crd.Spec) {
				t.Errorf("%s: %s differs from All(): run make generate", dir, crd.Name)
			}
		}
	}
}
