// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// TestRenderedObjectsApply sends everything that the chart can render to a real API server as
// a dry run.
func TestRenderedObjectsApply(t *testing.T) {
	t.Parallel()
	rendered := render(t, `
fullnameOverride: rendered
settings: {systemNamespace: default} # another test installs the chart
replicaCount: 2
config: {clusters: [{region: a, url: "https://a", token_id: a@pve!b, token_secret: c}]}
metrics: {enabled: true, type: service}
networkPolicy: {enabled: true}
customResources:
  nodeClass: {default: {enabled: true}}
  nodePools: {default: {enabled: true}}
  nodeTemplate: {default: {enabled: true}}
`)
	api, err := client.New(testenv.APIServer(t), client.Options{})
	check(t, err)
	api = client.WithFieldValidation(client.NewDryRunClient(api), metav1.FieldValidationStrict)
	for _, object := range rendered {
		err := api.Create(t.Context(), object)
		expect(t, err == nil, "%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}
