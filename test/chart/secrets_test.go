// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

func secret(name string, change func(*corev1.Secret)) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}, Data: map[string][]byte{"key": []byte("value")}}
	if change != nil {
		change(s)
	}
	return s
}

func isDenied(err error) error {
	if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		return errors.New("it was not denied: " + fmt.Sprint(err))
	}
	return nil
}

// TestSecretPermissions checks with a real API server that the controller can use its own join
// tokens and the Secrets with boot data, but no other Secret of kube-system.
func TestSecretPermissions(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	admin, controller := installPermissions(t, "secret-permissions")
	bootData := secret("secret-permissions-templates", nil)
	foreign := secret("foreign", nil)
	foreignToken := secret("bootstrap-token-abcdef", func(s *corev1.Secret) {
		s.Type, s.Data = corev1.SecretTypeBootstrapToken, map[string][]byte{"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef")}
	})
	for _, s := range []*corev1.Secret{bootData, foreign, foreignToken} {
		g.Expect(admin.Create(ctx, s)).To(Succeed())
	}

	// The API server applies new permissions and a new policy after some time.
	tokens := &bootdata.Tokens{Client: controller}
	claim := bootdata.Claim{Name: "default-x7k2p", UID: types.UID("6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c")}
	var first bootdata.Token
	g.Eventually(func() (err error) { first, err = tokens.Issue(ctx, claim); return err }).Should(Succeed())
	g.Eventually(func() error { return controller.Get(ctx, client.ObjectKeyFromObject(bootData), &corev1.Secret{}) }).Should(Succeed())
	for name, attempt := range deniedAttempts(controller, foreign, foreignToken) {
		g.Eventually(func() error { return isDenied(attempt(ctx)) }).Should(Succeed(), name)
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
func deniedAttempts(kube client.Client, foreign, foreignToken *corev1.Secret) map[string]func(context.Context) error {
	change := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
	token := func(data map[string][]byte) *corev1.Secret {
		return secret("bootstrap-token-zzzzzz", func(s *corev1.Secret) {
			s.Type, s.Labels, s.Data = corev1.SecretTypeBootstrapToken, map[string]string{bootdata.TokenLabel: "true", bootdata.TokenClaimUIDLabel: "x"}, data
		})
	}
	dry := client.NewDryRunClient(kube) // it must not succeed while the policy is not applied yet
	return map[string]func(context.Context) error{
		"get": func(ctx context.Context) error {
			return kube.Get(ctx, client.ObjectKeyFromObject(foreign), &corev1.Secret{})
		},
		"list": func(ctx context.Context) error {
			return kube.List(ctx, &corev1.SecretList{}, client.InNamespace(metav1.NamespaceSystem))
		},
		"update": func(ctx context.Context) error { return dry.Update(ctx, foreign.DeepCopy()) },
		"patch":  func(ctx context.Context) error { return dry.Patch(ctx, foreign.DeepCopy(), change) },
		"delete": func(ctx context.Context) error { return dry.Delete(ctx, foreign.DeepCopy()) },
		"create": func(ctx context.Context) error { return dry.Create(ctx, secret("new", nil)) },
		"delete_collection": func(ctx context.Context) error {
			return dry.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(metav1.NamespaceSystem))
		},
		"get_foreign_token": func(ctx context.Context) error {
			return kube.Get(ctx, client.ObjectKeyFromObject(foreignToken), &corev1.Secret{})
		},
		"patch_foreign_token": func(ctx context.Context) error {
			return dry.Patch(ctx, foreignToken.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(fmt.Sprintf(
				`{"metadata":{"labels":{%q:"true",%q:"x"}}}`, bootdata.TokenLabel, bootdata.TokenClaimUIDLabel))))
		},
		"delete_foreign_token": func(ctx context.Context) error { return dry.Delete(ctx, foreignToken.DeepCopy()) },
		"token_of_another_group": func(ctx context.Context) error {
			return dry.Create(ctx, token(map[string][]byte{
				"token-id": []byte("zzzzzz"), "token-secret": []byte("0123456789abcdef"), "auth-extra-groups": []byte("system:bootstrappers:kubeadm"),
			}))
		},
		"token_without_group": func(ctx context.Context) error {
			return dry.Create(ctx, token(map[string][]byte{"token-id": []byte("zzzzzz"), "token-secret": []byte("0123456789abcdef")}))
		},
		"token_for_signing": func(ctx context.Context) error {
			return dry.Create(ctx, token(map[string][]byte{
				"token-id": []byte("zzzzzz"), "token-secret": []byte("0123456789abcdef"),
				"auth-extra-groups": []byte(bootdata.TokenGroup), "usage-bootstrap-signing": []byte("true"),
			}))
		},
	}
}
