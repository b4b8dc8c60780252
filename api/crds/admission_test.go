// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"context"
	"maps"
	"os"
	"testing"
	"time"

	. "github.com/onsi/gomega"
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

// admissionCase is the spec of an object and part of the expected error. If that is empty, the API server must accept the object.
type admissionCase struct{ spec, refusal string }

// admissionCases are cases by name. Their fields replace those of a valid spec. Null removes a field.
type admissionCases map[string]admissionCase

// within puts the specs between a prefix and a suffix.
func (c admissionCases) within(prefix, suffix string) admissionCases {
	for name, test := range c {
		c[name] = admissionCase{prefix + test.spec + suffix, test.refusal}
	}
	return c
}

var validSpecs = map[string]string{
	v1alpha1.ProxmoxNodeClassKind: "instanceTemplateRef: {kind: ProxmoxTemplate, name: default}",
	v1alpha1.ProxmoxTemplateKind:  `{sourceImage: {url: "https://example.com/a"}, storageIDs: [local], network: [{bridge: vmbr0}]}`,
}

// runCases runs all cases with a function that returns the verdict on an object.
func runCases(t *testing.T, check func(context.Context, *unstructured.Unstructured) error) {
	t.Helper()
	for kind, tables := range map[string][]admissionCases{
		v1alpha1.ProxmoxNodeClassKind: {
			nodeClassCases, addressCases, cloudInitCases, diskCases, diskOptionCases, allInterfaceFields, interfaceCases,
			hardwareCases, highAvailabilityCases, templatesCases,
		},
		v1alpha1.ProxmoxTemplateKind:          {templateCases, templateNetworkCases, checksumCases},
		v1alpha1.ProxmoxUnmanagedTemplateKind: {unmanagedTemplateCases},
	} {
		for _, cases := range tables {
			for name, c := range cases {
				t.Run(kind+"/"+name, func(t *testing.T) {
					t.Parallel()
					err := check(t.Context(), object(t, kind, c.spec))
					if c.refusal == "" {
						NewWithT(t).Expect(err).NotTo(HaveOccurred())
					} else {
						NewWithT(t).Expect(err).To(MatchError(ContainSubstring(c.refusal)))
					}
				})
			}
		}
	}
}

// TestAPIServer checks the CRDs with a real API server. All cases share one server because starting it takes seconds.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	config := startAPIServer(t)
	scheme := runtime.NewScheme()
	g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	api, err := client.New(config, client.Options{Scheme: scheme})
	g.Expect(err).NotTo(HaveOccurred())

	create := func(ctx context.Context, o *unstructured.Unstructured) error {
		return api.Create(ctx, o, client.DryRunAll, client.FieldValidation(metav1.FieldValidationStrict))
	}
	runCases(t, create)
	g.Expect(create(t.Context(), object(t, v1alpha1.ProxmoxNodeClassKind, "bootdevice: {}"))).
		To(MatchError(ContainSubstring(`unknown field "spec.bootdevice"`)))
	for name, check := range map[string]func(*testing.T, client.Client){
		"defaults": checkDefaults, "hashes": checkHashes, "status": checkStatus, "transitions": checkTransitions,
		"flags_as_list_and_string": checkFlags, "upstream_manifests": checkUpstreamManifests, "restricted_labels": checkRestrictedLabels,
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); check(t, api) })
	}
	t.Run("names", func(t *testing.T) { t.Parallel(); checkNames(t, config) })
	t.Run("columns", func(t *testing.T) { t.Parallel(); checkColumns(t, config) })
}

func startAPIServer(t *testing.T) *rest.Config {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Skip("KUBEBUILDER_ASSETS is not set, so there is no API server to check the CRDs with: run \"make unit\"")
	}
	g := NewWithT(t)
	definitions, err := crds.All()
	g.Expect(err).NotTo(HaveOccurred())
	// The defaults are too short on a machine that compiles at the same time.
	const timeout = 2 * time.Minute
	server := &envtest.Environment{
		CRDs: definitions, ErrorIfCRDPathMissing: true, CRDInstallOptions: envtest.CRDInstallOptions{MaxTime: timeout},
		ControlPlaneStartTimeout: timeout, ControlPlaneStopTimeout: timeout,
	}
	config, err := server.Start()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(server.Stop()).To(Succeed()) })
	config.QPS, config.Burst = 500, 500
	return config
}

func object(t *testing.T, kind, spec string) *unstructured.Unstructured {
	t.Helper()
	fields := map[string]any{}
	for _, text := range []string{validSpecs[kind], spec} {
		NewWithT(t).Expect(yaml.Unmarshal([]byte(text), &fields)).To(Succeed())
	}
	maps.DeleteFunc(fields, func(_ string, value any) bool { return value == nil })
	out := &unstructured.Unstructured{Object: map[string]any{"spec": fields}}
	out.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind(kind))
	out.SetGenerateName("case-")
	return out
}
