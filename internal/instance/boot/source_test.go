// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package boot_test

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
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

func TestPreviewForbiddenConfigMap(t *testing.T) {
	t.Parallel()
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM, TemplatesRefs: []v1alpha1.TemplatesReference{{Kind: "ConfigMap", Namespace: "team", Name: "base"}}}
	_, err := boot.Source{Reader: forbidding{}, Namespace: "kube-system"}.Preview(t.Context(), class, nil)
	NewWithT(t).Expect(err).To(MatchError(And(
		ContainSubstring("configmap team/base of spec.metadataOptions.templatesRefs[0]"), ContainSubstring("add base to bootDataConfigMaps.team of the chart"),
	)))
}

// objects is an API server with Secrets and ConfigMaps, each with the key user-data.
type objects struct {
	client.Reader
	secrets, configMaps map[string]string
}

func (o objects) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Secret:
		into.Data = map[string][]byte{"user-data": []byte(o.secrets[key.Name])}
	case *corev1.ConfigMap:
		into.Data = map[string]string{"user-data": o.configMaps[key.Name], "ca.crt": "CA"}
	}
	return nil
}

func TestTemplatesInParts(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	refs := []v1alpha1.TemplatesReference{{Kind: "ConfigMap", Namespace: "team", Name: "base"}, {Namespace: "team", Name: "own"}}
	class := &v1alpha1.ProxmoxNodeClass{}
	class.Spec.MetadataOptions = v1alpha1.MetadataOptions{Type: v1alpha1.MetadataTypeCDROM, TemplatesRefs: refs, OnChange: v1alpha1.BootDataChangeReplace}
	source := func(base, own string) boot.Source {
		return boot.Source{
			Reader:  objects{secrets: map[string]string{"own": own}, configMaps: map[string]string{"base": base}},
			Version: func(context.Context) string { return "v1.36.0" },
		}
	}
	const config = "#cloud-config\nhostname: a\n"
	files, err := source(config, "#!/bin/sh\n").Preview(t.Context(), class, nil)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(files.UserData)).To(And(ContainSubstring("text/cloud-config"), ContainSubstring("text/x-shellscript")))

	_, err = source(config, "#cloud-config\n{{ .Nothing }}").Preview(t.Context(), class, nil)
	g.Expect(err).To(MatchError(ContainSubstring("rendering spec.metadataOptions.templatesRefs: secret team/own of item 1: user-data: line 2")))

	hashes := map[string]bool{}
	for _, content := range [][2]string{{config, ""}, {config, "#!/bin/sh\n"}, {"", config}} {
		hash, err := source(content[0], content[1]).Hash(t.Context(), class)
		g.Expect(err).NotTo(HaveOccurred())
		hashes[hash] = true
	}
	g.Expect(hashes).To(HaveLen(3), "every part is in the hash")
}
