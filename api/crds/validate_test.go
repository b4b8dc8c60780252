// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
)

// TestValidate compares the verdicts without an API server with those that TestAPIServer expects
// of one.
func TestValidate(t *testing.T) {
	t.Parallel()

	for kind, cases := range map[string][]admissionCase{
		v1alpha1.ProxmoxNodeClassKind:         slices.Concat(nodeClassCases(), diskCases(), interfaceCases(), hardwareCases(), highAvailabilityCases(), templatesCases()),
		v1alpha1.ProxmoxTemplateKind:          templateCases(),
		v1alpha1.ProxmoxUnmanagedTemplateKind: unmanagedTemplateCases(),
	} {
		for _, c := range cases {
			if strings.HasPrefix(c.refusal, "unknown field") {
				continue // Validate accepts them
			}

			t.Run(kind+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				checkValidate(t, c.spec, kind, c.refusal)
			})
		}
	}
}

func checkValidate(t *testing.T, spec, kind, refusal string) {
	t.Helper()

	o := object(t, kind, spec)

	sent, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}

	var content map[string]any
	if err := json.Unmarshal(sent, &content); err != nil {
		t.Fatal(err)
	}

	if err := crds.SetDefaults(o.GroupVersionKind(), content); err != nil {
		t.Fatal(err)
	}

	err = crds.Validate(t.Context(), o.GroupVersionKind(), content)

	switch {
	case refusal == "" && err != nil, refusal != "" && err == nil:
		t.Errorf("found error %v, want %q", err, refusal)
	case refusal != "" && !strings.Contains(err.Error(), refusal):
		t.Errorf("found error %q, want %q", err, refusal)
	}
}

func TestValidateKind(t *testing.T) {
	t.Parallel()

	for kind, want := range map[schema.GroupVersionKind]string{
		{Group: "", Version: "v1", Kind: "Secret"}: "",
		{Group: "karpenter.sh", Version: "v1beta1", Kind: "NodePool"}: "kind: found karpenter.sh/v1beta1 NodePool, which is unknown, " +
			"want one of karpenter.sh/v1 NodeClaim, karpenter.sh/v1 NodePool, karpenter.sh/v1alpha1 NodeOverlay",
	} {
		err := crds.Validate(t.Context(), kind, map[string]any{})
		if got := errorText(err); got != want {
			t.Errorf("%v: found error %q, want %q", kind, got, want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}

	return err.Error()
}
