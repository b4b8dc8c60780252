// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/boot"
)

// forbidding is an API server that forbids to read Secrets.
type forbidding struct{ client.Reader }

func (forbidding) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, key.Name, nil)
}

func TestPreviewForbiddenSecret(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM, TemplatesRef: &v1alpha1.SecretReference{Namespace: "team", Name: "templates"}}
	_, err := boot.Source{Reader: forbidding{}, Namespace: "kube-system"}.Preview(t.Context(), class, nil)
	NewWithT(t).Expect(err).To(MatchError(And(
		ContainSubstring("secret team/templates of spec.metadataOptions.templatesRef"), ContainSubstring("; check the name, and to let the controller read it, add templates to bootDataSecrets.team of the chart"),
	)))
}
