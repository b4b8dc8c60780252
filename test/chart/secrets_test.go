// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/examples"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
)

// installPermissions applies the permissions of the chart to a real API server and returns an
// administrator's client and one of the controller's ServiceAccount.
func installPermissions(t *testing.T, name string) (admin, controller client.Client) {
	t.Helper()
	config := testenv.APIServer(t)
	admin, err := client.New(config, client.Options{})
	check(t, err)
	rendered := render(t, fmt.Sprintf("fullnameOverride: %s\nbootDataSecrets: {kube-system: [%s-templates]}\nsettings: {webPagePort: 8443}", name, name))
	for _, object := range rendered {
		switch object.GetKind() {
		case "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding":
			err := admin.Create(t.Context(), object)
			if object.GetNamespace() == metav1.NamespaceSystem || object.GetNamespace() == "" {
				check(t, err)
			}
		}
	}
	config.Impersonate = rest.ImpersonationConfig{
		UserName: fmt.Sprintf("system:serviceaccount:%s:%s", namespace, name),
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	controller, err = client.New(config, client.Options{})
	check(t, err)
	return admin, controller
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}, Data: map[string][]byte{"key": []byte("value")}}
}

// TestSecretPermissions checks with a real API server that the controller can use its own join
// tokens and the Secrets with boot data, but no other Secret of kube-system.
func TestSecretPermissions(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	admin, controller := installPermissions(t, "secret-permissions")
	bootData, foreign, foreignToken := secret("secret-permissions-templates"), secret("foreign"), secret("bootstrap-token-abcdef")
	foreignToken.Type = corev1.SecretTypeBootstrapToken
	foreignToken.Data = map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef")}
	for _, s := range []*corev1.Secret{bootData, foreign, foreignToken} {
		g.Expect(admin.Create(ctx, s)).To(Succeed())
	}

	// The API server applies new permissions and a new policy after some time.
	tokens := &bootdata.Tokens{Client: controller}
	claim := bootdata.Claim{Name: "default-x7k2p", UID: types.UID("6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c")}
	var first bootdata.Token
	g.Eventually(func() (err error) { first, err = tokens.Issue(ctx, claim); return err }).Should(Succeed())
	g.Eventually(func() error { return controller.Get(ctx, client.ObjectKeyFromObject(bootData), &corev1.Secret{}) }).Should(Succeed())
	isDenied := func(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }
	for name, attempt := range deniedAttempts(ctx, controller, foreign, foreignToken) {
		g.Eventually(attempt).Should(MatchError(isDenied, "it is denied"), name)
	}
	again, err := tokens.Issue(ctx, claim)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.Value()).To(Equal(first.Value()))

	for _, s := range []*corev1.Secret{foreign, foreignToken} {
		stored := &corev1.Secret{}
		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(s), stored)).To(Succeed())
		g.Expect(stored.Data).To(Equal(s.Data))
	}
	g.Expect(tokens.Revoke(ctx, claim.UID)).To(Succeed())
	owned, err := (&bootdata.Tokens{Client: admin}).ListOwned(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(owned).To(BeEmpty())
}

// TestExampleSecrets checks that the controller can read the Secrets of the examples by default.
func TestExampleSecrets(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	rendered := render(t, "")
	readable := rendered.read(t, "Role", `{.metadata.namespace} {.rules[?(@.verbs[0]=="get")].resourceNames[*]}`)
	files, err := fs.Glob(examples.Files, "*/secrets.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	preparations, err := fs.Glob(examples.Files, "*/prepare.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	files = append(files, preparations...)
	g.Expect(files).NotTo(BeEmpty())
	for _, file := range files {
		content, err := examples.Files.ReadFile(file)
		g.Expect(err).NotTo(HaveOccurred())
		for _, object := range decode(t, string(content)) {
			g.Expect(readable).To(MatchRegexp(`(?m)^%s .*\b%s\b`, object.GetNamespace(), object.GetName()))
		}
	}
}

// deniedAttempts returns what a compromised controller could try.
func deniedAttempts(ctx context.Context, kube client.Client, foreign, foreignToken *corev1.Secret) map[string]func() error {
	dry := client.NewDryRunClient(kube) // it must not succeed while the policy is not applied yet
	inSystem := client.InNamespace(metav1.NamespaceSystem)
	patch := func(s *corev1.Secret, metadata string) error {
		return dry.Patch(ctx, s.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":`+metadata+`}`)))
	}
	createToken := func(data map[string]string) error {
		token := secret("bootstrap-token-zzzzzz")
		token.Labels = map[string]string{bootdata.TokenLabel: "true", bootdata.TokenClaimUIDLabel: "x"}
		token.Type, token.Data, token.StringData = corev1.SecretTypeBootstrapToken, nil, data
		maps.Copy(data, map[string]string{"token-id": "zzzzzz", "token-secret": "0123456789abcdef"})
		return dry.Create(ctx, token)
	}
	return map[string]func() error{
		"get":                  func() error { return kube.Get(ctx, client.ObjectKeyFromObject(foreign), &corev1.Secret{}) },
		"list":                 func() error { return kube.List(ctx, &corev1.SecretList{}, inSystem) },
		"update":               func() error { return dry.Update(ctx, foreign.DeepCopy()) },
		"patch":                func() error { return patch(foreign, `{"annotations":{"a":"b"}}`) },
		"delete":               func() error { return dry.Delete(ctx, foreign.DeepCopy()) },
		"create":               func() error { return dry.Create(ctx, secret("new")) },
		"delete_collection":    func() error { return dry.DeleteAllOf(ctx, &corev1.Secret{}, inSystem) },
		"get_foreign_token":    func() error { return kube.Get(ctx, client.ObjectKeyFromObject(foreignToken), &corev1.Secret{}) },
		"delete_foreign_token": func() error { return dry.Delete(ctx, foreignToken.DeepCopy()) },
		"patch_foreign_token": func() error {
			return patch(foreignToken, fmt.Sprintf(`{"labels":{%q:"true",%q:"x"}}`, bootdata.TokenLabel, bootdata.TokenClaimUIDLabel))
		},
		"token_of_another_group": func() error {
			return createToken(map[string]string{"auth-extra-groups": "system:bootstrappers:kubeadm"})
		},
		"token_without_group": func() error { return createToken(map[string]string{}) },
		"token_for_signing": func() error {
			return createToken(map[string]string{"auth-extra-groups": bootdata.TokenGroup, "usage-bootstrap-signing": "true"})
		},
	}
}
