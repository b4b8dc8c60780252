// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/crds"
)

// TestValidate compares the verdicts without an API server with those that TestAPIServer expects
// of one.
func TestValidate(t *testing.T) {
	t.Parallel()
	runCases(t, func(ctx context.Context, o *unstructured.Unstructured) error {
		sent, err := o.MarshalJSON()
		if err != nil {
			return err
		}
		var content map[string]any
		if err := json.Unmarshal(sent, &content); err != nil {
			return err
		}
		if err := crds.SetDefaults(o.GroupVersionKind(), content); err != nil {
			return err
		}
		return crds.Validate(ctx, o.GroupVersionKind(), content)
	})
}

func TestValidateKind(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	g.Expect(crds.Validate(t.Context(), schema.GroupVersionKind{Version: "v1", Kind: "Secret"}, nil)).To(Succeed())
	old := schema.GroupVersionKind{Group: "karpenter.sh", Version: "v1beta1", Kind: "NodePool"}
	g.Expect(crds.Validate(t.Context(), old, nil)).To(MatchError("kind: found karpenter.sh/v1beta1 NodePool, which is unknown, " +
		"want one of karpenter.sh/v1 NodeClaim, karpenter.sh/v1 NodePool, karpenter.sh/v1alpha1 NodeOverlay"))
}
