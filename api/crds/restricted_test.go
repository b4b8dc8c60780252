// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// checkRestrictedLabels checks that NodePools can require the existing labels of this provider's domain and no others.
func checkRestrictedLabels(t *testing.T, api client.Client) {
	t.Helper()

	const refused = `label domain "karpenter.proxmox.sinextra.dev" is restricted`

	pool := func(name, key, label string) *unstructured.Unstructured {
		pool := &unstructured.Unstructured{}
		manifest := `{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: ` + name + `}, spec: {template: {
			metadata: {labels: {` + label + `: "1"}},
			spec: {nodeClassRef: {group: karpenter.proxmox.sinextra.dev, kind: ProxmoxNodeClass, name: default},
				requirements: [{key: ` + key + `, operator: Exists}]}}}}`

		if err := yaml.Unmarshal([]byte(manifest), pool); err != nil {
			t.Fatal(err)
		}

		return pool
	}

	if err := api.Create(t.Context(), pool("known", v1alpha1.LabelInstanceFamily, "example.com/team")); err != nil {
		t.Errorf("a requirement on %s is refused: %v", v1alpha1.LabelInstanceFamily, err)
	}

	for name, p := range map[string]*unstructured.Unstructured{
		"requirement": pool("requirement", v1alpha1.Group+"/instance-famly", "example.com/team"),
		"label":       pool("label", v1alpha1.LabelInstanceFamily, v1alpha1.Group+"/mine"),
	} {
		if err := api.Create(t.Context(), p); err == nil || !strings.Contains(err.Error(), refused) {
			t.Errorf("unknown %s: got error %v, want %q", name, err, refused)
		}
	}
}
