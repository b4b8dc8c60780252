// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// TokenNamespace is where the API server looks for bootstrap tokens.
	TokenNamespace = metav1.NamespaceSystem
	// TokenGroup is the group that a VM is in while it holds a token. The chart
	// lets it ask for a kubelet's client certificate, and nothing else.
	TokenGroup = "system:bootstrappers:karpenter:proxmox"
	// DefaultTokenTTL leaves room for a slow clone, boot and join.
	DefaultTokenTTL = time.Hour

	// TokenLabel marks the Secrets that are ours.
	TokenLabel = "karpenter.proxmox.sinextra.dev/bootstrap-token"
	// TokenClaimUIDLabel holds the UID of the claim that the token is for.
	TokenClaimUIDLabel = "karpenter.proxmox.sinextra.dev/nodeclaim-uid"
	// TokenClaimAnnotation holds the claim's name, which may be too long for a label.
	TokenClaimAnnotation = "karpenter.proxmox.sinextra.dev/nodeclaim"
)

// The keys of a bootstrap token Secret, and the form of its name.
const (
	tokenNamePrefix   = "bootstrap-token-"
	tokenKeyID        = "token-id"
	tokenKeySecret    = "token-secret"
	tokenKeyExpires   = "expiration"
	tokenKeyUsage     = "usage-bootstrap-authentication"
	tokenKeyGroups    = "auth-extra-groups"
	tokenKeyNote      = "description"
	tokenAlphabet     = "abcdefghijklmnopqrstuvwxyz0123456789"
	tokenIDLength     = 6
	tokenSecretLength = 16
	// tokenCandidates is how many ids are tried. One in two billion collides.
	tokenCandidates = 8
)

// Claim is whom a token is for.
type Claim struct {
	Name string
	UID  types.UID
}

// Token lets one VM ask for its kubelet's certificate, for a while.
type Token struct {
	ID, Secret string
	Claim      Claim
	Expires    time.Time
}

// Value is what a kubelet presents: id.secret. There is no String method, so
// that a token that slips into a log line is at least seen in review.
func (t Token) Value() string { return t.ID + "." + t.Secret }

// Tokens issues and revokes join tokens: one per claim, kept as a bootstrap
// token Secret. What it knows is what the API server stores, so a controller
// that crashed goes on with the same token.
//
// Client must read past the cache. A cached one would hold every Secret of
// kube-system in memory, and would miss a token that was just made.
type Tokens struct {
	Client client.Client
	// TTL is how long a token lives; zero means DefaultTokenTTL.
	TTL time.Duration
	// Clock is the wall clock when nil.
	Clock clock.PassiveClock
}

// Issue returns the claim's token, and makes it if there is none. A token past
// half its life is prolonged and keeps its secret, so that boot data which was
// already made stays good.
func (t *Tokens) Issue(ctx context.Context, claim Claim) (Token, error) {
	if claim.UID == "" {
		return Token{}, fmt.Errorf("issuing a join token, claim %q has no UID", claim.Name)
	}
	owned, err := t.secrets(ctx, client.MatchingLabels{TokenLabel: "true", TokenClaimUIDLabel: string(claim.UID)})
	if err != nil {
		return Token{}, fmt.Errorf("looking for the join token of claim %s, %w", claim.Name, err)
	}
	if len(owned) > 0 {
		return t.renew(ctx, &owned[0])
	}
	for attempt := range tokenCandidates {
		secret, err := t.newSecret(claim, attempt)
		if err != nil {
			return Token{}, err
		}
		err = t.Client.Create(ctx, secret)
		if apierrors.IsAlreadyExists(err) {
			// Somebody else's token has this id: we listed ours a moment ago. Should
			// it be ours after all, made in between, the next call finds it.
			existing := &corev1.Secret{}
			if err := t.Client.Get(ctx, client.ObjectKeyFromObject(secret), existing); err == nil && ownedBy(existing, claim.UID) {
				return t.renew(ctx, existing)
			}
			continue
		}
		if err != nil {
			return Token{}, fmt.Errorf("creating the join token of claim %s, %w", claim.Name, err)
		}
		return tokenOf(secret)
	}
	return Token{}, fmt.Errorf("creating the join token of claim %s, %d ids are taken by Secrets %s* in %s that are not ours", claim.Name, tokenCandidates, tokenNamePrefix, TokenNamespace)
}

// Revoke deletes the claim's token. It is no error if there is none.
func (t *Tokens) Revoke(ctx context.Context, claimUID types.UID) error {
	if claimUID == "" {
		return errors.New("revoking a join token, the claim's UID is empty")
	}
	owned, err := t.secrets(ctx, client.MatchingLabels{TokenLabel: "true", TokenClaimUIDLabel: string(claimUID)})
	if err != nil {
		return fmt.Errorf("looking for the join token of claim UID %s, %w", claimUID, err)
	}
	var errs []error
	for i := range owned {
		// The precondition keeps us from a Secret that took the name meanwhile.
		err := t.Client.Delete(ctx, &owned[i], client.Preconditions{UID: &owned[i].UID})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("deleting join token Secret %s, %w", owned[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

// ListOwned lists the tokens of all claims, for a collector of those whose claim
// is gone. Their secrets are left out.
func (t *Tokens) ListOwned(ctx context.Context) ([]Token, error) {
	owned, err := t.secrets(ctx, client.MatchingLabels{TokenLabel: "true"})
	if err != nil {
		return nil, fmt.Errorf("listing join tokens, %w", err)
	}
	tokens := make([]Token, 0, len(owned))
	for i := range owned {
		token, err := tokenOf(&owned[i])
		if err != nil {
			// Somebody spoiled it. It is ours all the same and has to be collected.
			token = Token{ID: strings.TrimPrefix(owned[i].Name, tokenNamePrefix), Claim: claimOf(&owned[i])}
		}
		token.Secret = ""
		tokens = append(tokens, token)
	}
	return tokens, nil
}

// renew gives a token that is past half its life a whole one.
func (t *Tokens) renew(ctx context.Context, secret *corev1.Secret) (Token, error) {
	token, err := tokenOf(secret)
	if err != nil {
		return Token{}, err
	}
	if token.Expires.Sub(t.now()) > t.ttl()/2 {
		return token, nil
	}
	secret.Data[tokenKeyExpires] = t.expiration()
	if err := t.Client.Update(ctx, secret); err != nil {
		return Token{}, fmt.Errorf("renewing join token Secret %s, %w", secret.Name, err)
	}
	return tokenOf(secret)
}

func (t *Tokens) newSecret(claim Claim, attempt int) (*corev1.Secret, error) {
	random, err := randomSecret()
	if err != nil {
		return nil, fmt.Errorf("making a join token, %w", err)
	}
	id := tokenID(claim.UID, attempt)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   TokenNamespace,
			Name:        tokenNamePrefix + id,
			Labels:      map[string]string{TokenLabel: "true", TokenClaimUIDLabel: string(claim.UID)},
			Annotations: map[string]string{TokenClaimAnnotation: claim.Name},
		},
		Type: corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			tokenKeyID:      []byte(id),
			tokenKeySecret:  []byte(random),
			tokenKeyExpires: t.expiration(),
			tokenKeyUsage:   []byte("true"),
			tokenKeyGroups:  []byte(TokenGroup),
			tokenKeyNote:    []byte("Join token of NodeClaim " + claim.Name + ", issued by karpenter-provider-proxmox"),
		},
	}, nil
}

// secrets lists our Secrets with these labels, and checks that they are ours:
// a label is easily copied along with a Secret.
func (t *Tokens) secrets(ctx context.Context, labels client.MatchingLabels) ([]corev1.Secret, error) {
	list := &corev1.SecretList{}
	if err := t.Client.List(ctx, list, client.InNamespace(TokenNamespace), labels); err != nil {
		return nil, err
	}
	owned := list.Items[:0]
	for _, secret := range list.Items {
		if isOurs(&secret) {
			owned = append(owned, secret)
		}
	}
	return owned, nil
}

func isOurs(s *corev1.Secret) bool {
	return s.Labels[TokenLabel] == "true" && s.Labels[TokenClaimUIDLabel] != "" &&
		s.Type == corev1.SecretTypeBootstrapToken &&
		strings.HasPrefix(s.Name, tokenNamePrefix) && string(s.Data[tokenKeyGroups]) == TokenGroup
}

func ownedBy(s *corev1.Secret, claimUID types.UID) bool {
	return isOurs(s) && s.Labels[TokenClaimUIDLabel] == string(claimUID)
}

func claimOf(s *corev1.Secret) Claim {
	return Claim{Name: s.Annotations[TokenClaimAnnotation], UID: types.UID(s.Labels[TokenClaimUIDLabel])}
}

func tokenOf(s *corev1.Secret) (Token, error) {
	expires, err := time.Parse(time.RFC3339, string(s.Data[tokenKeyExpires]))
	if err != nil {
		return Token{}, fmt.Errorf("reading join token Secret %s, key %s is not a time in RFC 3339 form", s.Name, tokenKeyExpires)
	}
	token := Token{ID: string(s.Data[tokenKeyID]), Secret: string(s.Data[tokenKeySecret]), Claim: claimOf(s), Expires: expires}
	if tokenNamePrefix+token.ID != s.Name || len(token.Secret) != tokenSecretLength {
		return Token{}, fmt.Errorf("reading join token Secret %s, %s or %s does not fit", s.Name, tokenKeyID, tokenKeySecret)
	}
	return token, nil
}

// tokenID derives the id from the claim, so that two controllers that race for
// one claim make one token.
func tokenID(claimUID types.UID, attempt int) string {
	sum := sha256.Sum256([]byte("karpenter-provider-proxmox/" + string(claimUID) + "/" + strconv.Itoa(attempt)))
	n, base := new(big.Int).SetBytes(sum[:]), big.NewInt(int64(len(tokenAlphabet)))
	id := make([]byte, tokenIDLength)
	for i := range id {
		digit := new(big.Int)
		n.DivMod(n, base, digit)
		id[i] = tokenAlphabet[digit.Int64()]
	}
	return string(id)
}

func randomSecret() (string, error) {
	out := make([]byte, tokenSecretLength)
	for i := range out {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(tokenAlphabet))))
		if err != nil {
			return "", err
		}
		out[i] = tokenAlphabet[n.Int64()]
	}
	return string(out), nil
}

func (t *Tokens) expiration() []byte {
	return []byte(t.now().Add(t.ttl()).UTC().Format(time.RFC3339))
}

func (t *Tokens) ttl() time.Duration {
	if t.TTL > 0 {
		return t.TTL
	}
	return DefaultTokenTTL
}

func (t *Tokens) now() time.Time {
	if t.Clock != nil {
		return t.Clock.Now()
	}
	return time.Now()
}
