// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
)

func TestAllHoldsOursAndKarpenters(t *testing.T) {
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
			t.Errorf("All() lacks %s, it has %v", name, names)
		}
	}
}

func TestChartShipsTheSameFiles(t *testing.T) {
	t.Parallel()

	own, err := filepath.Glob("*.yaml")
	if err != nil || len(own) == 0 {
		t.Fatalf("no CRDs here: %v", err)
	}

	for _, name := range own {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}

		got, err := os.ReadFile(filepath.Join("..", "..", "charts", "karpenter-provider-proxmox", "crds", name))
		if err != nil {
			t.Fatal(err)
		}

		if string(got) != string(want) {
			t.Errorf("the chart's %s differs: run make generate", name)
		}
	}
}
