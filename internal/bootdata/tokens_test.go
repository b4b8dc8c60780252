// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata_test

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/bootdata"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func newTokens(objects ...client.Object) (*bootdata.Tokens, *clocktesting.FakePassiveClock) {
	clock := clocktesting.NewFakePassiveClock(noon)
	kube := interceptor.NewClient(fake.NewClientBuilder().WithObjects(objects...).Build(), interceptor.Funcs{Patch: patch})
	return &bootdata.Tokens{Client: kube, TTL: time.Hour, Clock: clock}, clock
}

// patch answers a failed test of a JSON patch as the API server does.
func patch(ctx context.Context, c client.WithWatch, object client.Object, change client.Patch, options ...client.PatchOption) error {
	err := c.Patch(ctx, object, change, options...)
	if err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", corev1.Resource("secrets"), object.GetName(), err.Error(), 0, false)
	}
	return err
}

func secretsOf(t *testing.T, tokens *bootdata.Tokens) []corev1.Secret {
	t.Helper()
	list := &corev1.SecretList{}
	NewWithT(t).Expect(tokens.Client.List(t.Context(), list)).To(Succeed())
	return list.Items
}

func issue(t *testing.T, tokens *bootdata.Tokens, claim bootdata.Claim) bootdata.Token {
	t.Helper()
	token, err := tokens.Issue(t.Context(), claim)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return token
}

var claim = bootdata.Claim{Name: "default-x7k2p", UID: "6f1c1d8e-7a39-4e0c-9d6a-0f3b6f0a1b2c"}

func TestIssue(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	tokens, _ := newTokens()
	token := issue(t, tokens, claim)

	g.Expect(token.Value()).To(MatchRegexp(`^[a-z0-9]{6}\.[a-z0-9]{16}$`), "the format that the API server accepts")
	g.Expect(token.Expires).To(BeTemporally("==", noon.Add(time.Hour)))
	secrets := secretsOf(t, tokens)
	g.Expect(secrets).To(HaveLen(1))
	g.Expect(secrets[0].Namespace + "/" + secrets[0].Name).To(Equal("kube-system/bootstrap-token-" + token.ID))
	g.Expect(secrets[0].Type).To(Equal(corev1.SecretTypeBootstrapToken))
	g.Expect(secrets[0].Labels).To(HaveKeyWithValue("karpenter.proxmox.sinextra.dev/bootstrap-token", "true"))
	g.Expect(secrets[0].Labels).To(HaveKeyWithValue("karpenter.proxmox.sinextra.dev/nodeclaim-uid", string(claim.UID)))
	g.Expect(secrets[0].OwnerReferences).To(ConsistOf(metav1.OwnerReference{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim.Name, UID: claim.UID}))
	g.Expect(secrets[0].Annotations).To(HaveKeyWithValue("karpenter.proxmox.sinextra.dev/nodeclaim", claim.Name))
	data := map[string]string{}
	for key, value := range secrets[0].Data {
		data[key] = string(value)
	}
	g.Expect(data).To(Equal(map[string]string{
		"token-id": token.ID, "token-secret": token.Secret, "expiration": "2026-01-02T13:00:00Z",
		"usage-bootstrap-authentication": "true", "auth-extra-groups": "system:bootstrappers:karpenter:proxmox",
		"description": "Join token of NodeClaim default-x7k2p, issued by karpenter-provider-proxmox",
	}))
}

func TestIssueTwice(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	tokens, clock := newTokens()
	first := issue(t, tokens, claim)
	clock.SetTime(noon.Add(20 * time.Minute))
	again := issue(t, tokens, claim)
	g.Expect(again.Value()).To(Equal(first.Value()))

	for _, later := range []time.Duration{40 * time.Minute, 5 * time.Hour} {
		clock.SetTime(noon.Add(later))
		renewed := issue(t, tokens, claim)
		g.Expect(renewed.Value()).To(Equal(first.Value()), "existing boot data stays valid")
		g.Expect(renewed.Expires).To(BeTemporally("==", noon.Add(later+time.Hour)))
	}
	g.Expect(secretsOf(t, tokens)).To(HaveLen(1))
	other := issue(t, tokens, bootdata.Claim{Name: claim.Name, UID: "another"})
	g.Expect(other.ID).NotTo(Equal(first.ID))
	g.Expect(other.Secret).NotTo(Equal(first.Secret))
}

func TestIssueIDTaken(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	probe, _ := newTokens()
	expected := issue(t, probe, claim)
	foreign := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + expected.ID},
		Type:       corev1.SecretTypeBootstrapToken, Data: map[string][]byte{"token-id": []byte(expected.ID)},
	}
	tokens, _ := newTokens(foreign)

	token := issue(t, tokens, claim)
	g.Expect(token.ID).NotTo(Equal(expected.ID))

	g.Expect(tokens.Issue(t.Context(), claim)).To(Equal(token))
	g.Expect(tokens.Revoke(t.Context(), claim.UID)).To(Succeed())
	g.Expect(secretsOf(t, tokens)).To(ConsistOf(HaveField("Name", foreign.Name)))
}

func TestIssueAllIDsTaken(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	tokens, _ := newTokens()
	tokens.Client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Patch: patch,
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, _ ...client.CreateOption) error {
			_ = c.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: object.GetNamespace(), Name: object.GetName()}})
			return c.Create(ctx, object)
		},
	})
	g.Expect(tokens.Issue(t.Context(), claim)).Error().To(MatchError(ContainSubstring("8 IDs are taken by other Secrets bootstrap-token-* in kube-system")))
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	labels := map[string]string{bootdata.TokenLabel: "true", bootdata.TokenClaimUIDLabel: string(claim.UID)}
	copied := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "copied", Labels: labels}}
	elsewhere := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bootstrap-token-abcdef", Labels: labels}}
	tokens, _ := newTokens(copied, elsewhere)
	issue(t, tokens, claim)
	g.Expect(tokens.Issue(ctx, bootdata.Claim{Name: "other", UID: "other-uid"})).Error().NotTo(HaveOccurred())

	g.Expect(tokens.Revoke(ctx, claim.UID)).To(Succeed())
	g.Expect(tokens.Revoke(ctx, claim.UID)).To(Succeed(), "revoking twice is not an error")

	var names []string
	for _, s := range secretsOf(t, tokens) {
		names = append(names, regexp.MustCompile(`-[a-z0-9]{6}$`).ReplaceAllString(s.Name, "-*"))
	}
	g.Expect(names).To(ConsistOf("copied", "bootstrap-token-*", "bootstrap-token-*"))
	owned, err := tokens.ListOwned(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(owned).To(HaveLen(1))
	g.Expect(owned[0].Claim).To(Equal(bootdata.Claim{Name: "other", UID: "other-uid"}))
	g.Expect(owned[0].Expires).To(BeTemporally("==", noon.Add(time.Hour)))
	g.Expect(owned[0].Secret).To(BeEmpty())
}

func TestListOwnedInvalidToken(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	ctx := t.Context()
	tokens, _ := newTokens()
	issue(t, tokens, claim)
	secret := secretsOf(t, tokens)[0]
	secret.Data["expiration"] = []byte("soon")
	g.Expect(tokens.Client.Update(ctx, &secret)).To(Succeed())

	owned, err := tokens.ListOwned(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(owned).To(HaveLen(1))
	g.Expect(owned[0].Claim).To(Equal(claim))
	g.Expect(tokens.Revoke(ctx, claim.UID)).To(Succeed())
	g.Expect(secretsOf(t, tokens)).To(BeEmpty())
}

func TestTokenErrors(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	broken := errors.New("connection refused")
	tokens, _ := newTokens()
	tokens.Client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return broken },
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return broken
		},
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return broken },
	})
	_, err := tokens.Issue(t.Context(), claim)
	g.Expect(err).To(MatchError(And(ContainSubstring("join token of NodeClaim default-x7k2p"), ContainSubstring("connection refused"))))
	g.Expect(tokens.Revoke(t.Context(), claim.UID)).To(MatchError(broken))
	g.Expect(tokens.ListOwned(t.Context())).Error().To(MatchError(broken))
	g.Expect(tokens.Issue(t.Context(), bootdata.Claim{Name: "x"})).Error().To(MatchError(ContainSubstring(`NodeClaim "x" has no UID`)))
	g.Expect(tokens.Revoke(t.Context(), "")).NotTo(Succeed(), "an empty UID is rejected")
}
