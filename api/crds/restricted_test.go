// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// checkRestrictedLabels checks that NodePools can require the existing labels of this provider's domain and no others.
func checkRestrictedLabels(t *testing.T, api client.Client) {
	create := func(name, key, label string) error {
		pool := &unstructured.Unstructured{}
		manifest := `{apiVersion: karpenter.sh/v1, kind: NodePool, metadata: {name: ` + name + `}, spec: {template: {
			metadata: {labels: {` + label + `: "1"}},
			spec: {nodeClassRef: {group: karpenter.proxmox.sinextra.dev, kind: ProxmoxNodeClass, name: default},
				requirements: [{key: ` + key + `, operator: Exists}]}}}}`
		NewWithT(t).Expect(yaml.Unmarshal([]byte(manifest), pool)).To(Succeed())
		return api.Create(t.Context(), pool)
	}
	g, refused := NewWithT(t), MatchError(ContainSubstring(`label domain "karpenter.proxmox.sinextra.dev" is restricted`))
	g.Expect(create("known", v1alpha1.LabelInstanceFamily, "example.com/team")).To(Succeed())
	g.Expect(create("requirement", v1alpha1.Group+"/instance-famly", "example.com/team")).To(refused)
	g.Expect(create("label", v1alpha1.LabelInstanceFamily, v1alpha1.Group+"/mine")).To(refused)
}
