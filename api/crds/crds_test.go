// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"os"
	"path/filepath"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
)

func TestAll(t *testing.T) {
	t.Parallel()

	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}

	names := map[string]bool{}
	for _, crd := range all {
		names[crd.Name] = true
	}

	for _, name := range []string{
		"proxmoxnodeclasses.karpenter.proxmox.sinextra.dev",
		"proxmoxtemplates.karpenter.proxmox.sinextra.dev",
		"proxmoxunmanagedtemplates.karpenter.proxmox.sinextra.dev",
		"nodepools.karpenter.sh",
		"nodeclaims.karpenter.sh",
		"nodeoverlays.karpenter.sh",
		"capacitybuffers.autoscaling.x-k8s.io",
	} {
		if !names[name] {
			t.Errorf("All() does not return %s, but %v", name, names)
		}
	}
}

func TestAllMatchesCharts(t *testing.T) {
	t.Parallel()

	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}

	for _, dir := range []string{"karpenter-provider-proxmox/crds", "karpenter-provider-proxmox-crd/templates"} {
		shipped := map[string]*apiextensionsv1.CustomResourceDefinition{}

		files, err := filepath.Glob(filepath.Join("..", "..", "charts", dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}

		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}

			crd := &apiextensionsv1.CustomResourceDefinition{}
			if err := yaml.UnmarshalStrict(data, crd); err != nil {
				t.Fatalf("%s: %v", file, err)
			}

			if crd.Annotations["helm.sh/resource-policy"] != "keep" {
				t.Errorf("%s lacks helm.sh/resource-policy: keep: helm uninstall would delete the CRD and all VMs", file)
			}

			shipped[crd.Name] = crd
		}

		if len(shipped) != len(all) {
			t.Errorf("%s ships %d CRDs, want %d", dir, len(shipped), len(all))
		}

		for _, crd := range all {
			if got := shipped[crd.Name]; got == nil || !equality.Semantic.DeepEqual(got.Spec, crd.Spec) {
				t.Errorf("%s: %s differs from All(): run make generate", dir, crd.Name)
			}
		}
	}
}
