// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/yaml"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// TestAPIServer checks the CRDs with a real API server. All cases share one server because starting it takes seconds.
func TestAPIServer(t *testing.T) {
	t.Parallel()

	config := startAPIServer(t)
	scheme := runtime.NewScheme()

	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		kind  string
		cases []admissionCase
	}{
		"NodeClass":         {v1alpha1.ProxmoxNodeClassKind, slices.Concat(nodeClassCases(), diskCases(), interfaceCases(), hardwareCases(), highAvailabilityCases(), templatesCases())},
		"Template":          {v1alpha1.ProxmoxTemplateKind, templateCases()},
		"UnmanagedTemplate": {v1alpha1.ProxmoxUnmanagedTemplateKind, unmanagedTemplateCases()},
	} {
		for _, admission := range c.cases {
			t.Run(name+"/"+admission.name, func(t *testing.T) {
				t.Parallel()
				admission.check(t, api, c.kind)
			})
		}
	}

	t.Run("defaults", func(t *testing.T) { t.Parallel(); checkDefaults(t, api) })
	t.Run("hashes", func(t *testing.T) { t.Parallel(); checkHashes(t, api) })
	t.Run("status", func(t *testing.T) { t.Parallel(); checkStatus(t, api) })
	t.Run("transitions", func(t *testing.T) { t.Parallel(); checkTransitions(t, api) })
	t.Run("flags_as_list_and_string", func(t *testing.T) { t.Parallel(); checkFlags(t, api) })
	t.Run("upstream_manifests", func(t *testing.T) { t.Parallel(); checkUpstreamManifests(t, api) })
	t.Run("restricted_labels", func(t *testing.T) { t.Parallel(); checkRestrictedLabels(t, api) })
	t.Run("names", func(t *testing.T) { t.Parallel(); checkNames(t, config) })
	t.Run("columns", func(t *testing.T) { t.Parallel(); checkColumns(t, config) })
}

func startAPIServer(t *testing.T) *rest.Config {
	t.Helper()

	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set, so there is no API server to check the CRDs with: run \"make unit\"")
	}

	definitions, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}

	// The defaults are too short on a machine that compiles at the same time.
	const timeout = 2 * time.Minute
	server := &envtest.Environment{
		CRDs: definitions, ErrorIfCRDPathMissing: true, CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: timeout},
		ControlPlaneStartTimeout: timeout, ControlPlaneStopTimeout: timeout,
	}

	config, err := server.Start()
	if err != nil {
		t.Fatalf("starting the API server: %v", err)
	}

	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("stopping the API server: %v", err)
		}
	})

	config.QPS, config.Burst = 500, 500

	return config
}

// admissionCase is the spec of an object and the expected result of creating it.
type admissionCase struct {
	name string
	spec string
	// refusal is part of the expected error. If it is empty, the API server must accept the object.
	refusal string
}

func (c admissionCase) check(t *testing.T, api client.Client, kind string) {
	t.Helper()

	err := api.Create(t.Context(), object(t, kind, c.spec), client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))

	switch {
	case c.refusal == "" && err != nil:
		t.Errorf("refused: %v", err)
	case c.refusal != "" && err == nil:
		t.Errorf("accepted, want %q", c.refusal)
	case c.refusal != "" && !strings.Contains(err.Error(), c.refusal):
		t.Errorf("refused with %q, want %q", err, c.refusal)
	}
}

func object(t *testing.T, kind, spec string) *unstructured.Unstructured {
	t.Helper()

	fields := map[string]any{}
	if err := yaml.Unmarshal([]byte(spec), &fields); err != nil {
		t.Fatal(err)
	}

	out := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	out.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	out.SetGenerateName("case-")

	return out
}
