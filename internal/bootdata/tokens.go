// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package bootdata

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
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
	// TokenNamespace is the namespace of bootstrap tokens.
	TokenNamespace = metav1.NamespaceSystem
	// TokenGroup is the group of a VM that authenticates with a token. The chart only
	// allows it to request the client certificate of a kubelet.
	TokenGroup = "system:bootstrappers:karpenter:proxmox"
	// DefaultTokenTTL allows for a slow clone, boot and join.
	DefaultTokenTTL = time.Hour

	// TokenLabel is the label of Secrets that Tokens created.
	TokenLabel = "karpenter.proxmox.sinextra.dev/bootstrap-token"
	// TokenClaimUIDLabel contains the UID of the Claim.
	TokenClaimUIDLabel = "karpenter.proxmox.sinextra.dev/nodeclaim-uid"
	// TokenClaimAnnotation contains the name of the Claim, which may be too long for a
	// label.
	TokenClaimAnnotation = "karpenter.proxmox.sinextra.dev/nodeclaim"
)

// Keys of a bootstrap token Secret, and the format of its name and values.
const (
	tokenNamePrefix   = "bootstrap-token-"
	tokenKeyID        = "token-id"
	tokenKeySecret    = "token-secret"
	tokenKeyExpires   = "expiration"
	tokenKeyUsage     = "usage-bootstrap-authentication"
	tokenKeyGroups    = "auth-extra-groups"
	tokenKeyNote      = "description"
	tokenIDLength     = 6
	tokenSecretLength = 16
	// tokenCandidates is how many IDs are tried. One in two billion collides.
	tokenCandidates = 8
)

// Claim identifies the NodeClaim of a token.
type Claim struct {
	Name string
	UID  types.UID
}

// Token allows one VM to request the certificate of its kubelet until it expires.
type Token struct {
	ID, Secret string
	Claim      Claim
	Expires    time.Time
}

// Value returns the token as id.secret. There is no String method, so logging a token is
// visible in a review.
func (t Token) Value() string { return t.ID + "." + t.Secret }

// Tokens issues and revokes join tokens: one per Claim, stored as a bootstrap token
// Secret. All state is in the API server, so a restarted controller uses the same token.
//
// RBAC can neither restrict reads to a label nor to a prefix of names. So Tokens never gets
// or lists Secrets, except in ListOwned: it creates, patches and deletes them by name, and a
// patch fails unless the Secret is the token of the Claim. The chart's admission policy
// denies all other writes.
//
// Client must not read from a cache. It would keep every Secret of kube-system in memory.
type Tokens struct {
	Client client.Client
	// TTL is the lifetime of a token; zero means DefaultTokenTTL.
	TTL time.Duration
	// Clock is the wall clock if nil.
	Clock clock.PassiveClock
}

// Issue returns the token of a Claim and creates it if there is none. It extends an
// existing token and keeps its secret, so existing boot data stays valid. Kubernetes
// deletes the token with the Claim. Issue fails if the Claim has no UID or the API server
// cannot be used.
func (t *Tokens) Issue(ctx context.Context, claim Claim) (Token, error) {
	if claim.UID == "" {
		return Token{}, fmt.Errorf("issuing a join token: NodeClaim %q has no UID", claim.Name)
	}
	for attempt := range tokenCandidates {
		secret := t.newSecret(claim, attempt)
		err := t.Client.Create(ctx, secret)
		if apierrors.IsAlreadyExists(err) {
			secret, err = t.patch(ctx, claim.UID, attempt, patchOperation{"add", "/data/" + tokenKeyExpires, t.expiration()})
		}
		if errors.Is(err, errNotOwned) {
			continue
		}
		if err != nil {
			return Token{}, fmt.Errorf("creating the join token of NodeClaim %s: %w", claim.Name, err)
		}
		return parseToken(secret)
	}
	return Token{}, fmt.Errorf("creating the join token of NodeClaim %s: %d IDs are taken by other Secrets %s* in %s", claim.Name, tokenCandidates, tokenNamePrefix, TokenNamespace)
}

// Revoke deletes the token of a Claim, if there is one.
func (t *Tokens) Revoke(ctx context.Context, claimUID types.UID) error {
	if claimUID == "" {
		return errors.New("revoking a join token: the UID of the NodeClaim is empty")
	}
	for attempt := range tokenCandidates {
		secret, err := t.patch(ctx, claimUID, attempt)
		if errors.Is(err, errNotOwned) {
			continue
		}
		if err == nil {
			// The precondition protects a Secret that was created with the same name meanwhile.
			err = t.Client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID})
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("deleting the join token of NodeClaim UID %s: %w", claimUID, err)
		}
		return nil
	}
	return nil
}

// errNotOwned means that a Secret is not the token of the Claim.
var errNotOwned = errors.New("it is not the token of the NodeClaim")

// patchOperation is an operation of a JSON patch.
type patchOperation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// patch changes the Secret with a candidate of the Claim's token ID and returns it. It
// returns errNotOwned if the Secret is not the token of the Claim.
func (t *Tokens) patch(ctx context.Context, claimUID types.UID, attempt int, changes ...patchOperation) (*corev1.Secret, error) {
	operations := []patchOperation{{"test", "/metadata/labels/" + strings.ReplaceAll(TokenClaimUIDLabel, "/", "~1"), claimUID}}
	content, err := json.Marshal(append(operations, changes...))
	if err != nil {
		return nil, fmt.Errorf("encoding the patch of a join token: %w", err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: TokenNamespace, Name: tokenNamePrefix + tokenID(claimUID, attempt)}}
	err = t.Client.Patch(ctx, secret, client.RawPatch(types.JSONPatchType, content))
	if apierrors.IsInvalid(err) || err == nil && !isOwnedBy(secret, claimUID) {
		return nil, errNotOwned
	}
	return secret, err
}

// ListOwned returns the tokens of all Claims, without their secrets. The controller must
// not list Secrets; this is for administrators.
func (t *Tokens) ListOwned(ctx context.Context) ([]Token, error) {
	list := &corev1.SecretList{}
	if err := t.Client.List(ctx, list, client.InNamespace(TokenNamespace), client.MatchingLabels{TokenLabel: "true"}); err != nil {
		return nil, fmt.Errorf("listing join tokens: %w", err)
	}
	tokens := make([]Token, 0, len(list.Items))
	for i := range list.Items {
		secret := &list.Items[i]
		if !isOwned(secret) { // users may copy a Secret with its labels
			continue
		}
		token, err := parseToken(secret)
		if err != nil {
			// A user made it invalid. It is still ours and must be garbage collected.
			token = Token{ID: strings.TrimPrefix(secret.Name, tokenNamePrefix), Claim: claimOf(secret)}
		}
		token.Secret = ""
		tokens = append(tokens, token)
	}
	return tokens, nil
}

func (t *Tokens) newSecret(claim Claim, attempt int) *corev1.Secret {
	id := tokenID(claim.UID, attempt)
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       TokenNamespace,
			Name:            tokenNamePrefix + id,
			Labels:          map[string]string{TokenLabel: "true", TokenClaimUIDLabel: string(claim.UID)},
			Annotations:     map[string]string{TokenClaimAnnotation: claim.Name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "karpenter.sh/v1", Kind: "NodeClaim", Name: claim.Name, UID: claim.UID}},
		},
		Type: corev1.SecretTypeBootstrapToken,
		Data: map[string][]byte{
			tokenKeyID:      []byte(id),
			tokenKeySecret:  []byte(strings.ToLower(rand.Text())[:tokenSecretLength]),
			tokenKeyExpires: t.expiration(),
			tokenKeyUsage:   []byte("true"),
			tokenKeyGroups:  []byte(TokenGroup),
			tokenKeyNote:    []byte("Join token of NodeClaim " + claim.Name + ", issued by karpenter-provider-proxmox"),
		},
	}
}

func isOwned(s *corev1.Secret) bool {
	return s.Labels[TokenLabel] == "true" && s.Labels[TokenClaimUIDLabel] != "" &&
		s.Type == corev1.SecretTypeBootstrapToken &&
		strings.HasPrefix(s.Name, tokenNamePrefix) && string(s.Data[tokenKeyGroups]) == TokenGroup
}

func isOwnedBy(s *corev1.Secret, claimUID types.UID) bool {
	return isOwned(s) && s.Labels[TokenClaimUIDLabel] == string(claimUID)
}

func claimOf(s *corev1.Secret) Claim {
	return Claim{Name: s.Annotations[TokenClaimAnnotation], UID: types.UID(s.Labels[TokenClaimUIDLabel])}
}

func parseToken(s *corev1.Secret) (Token, error) {
	expires, err := time.Parse(time.RFC3339, string(s.Data[tokenKeyExpires]))
	if err != nil {
		return Token{}, fmt.Errorf("reading join token Secret %s: key %s is not a time in RFC 3339 format", s.Name, tokenKeyExpires)
	}
	token := Token{ID: string(s.Data[tokenKeyID]), Secret: string(s.Data[tokenKeySecret]), Claim: claimOf(s), Expires: expires}
	if tokenNamePrefix+token.ID != s.Name || len(token.Secret) != tokenSecretLength {
		return Token{}, fmt.Errorf("reading join token Secret %s: %s or %s is invalid", s.Name, tokenKeyID, tokenKeySecret)
	}
	return token, nil
}

// tokenID derives the ID from the Claim, so two concurrent controllers create one token
// per Claim.
func tokenID(claimUID types.UID, attempt int) string {
	sum := sha256.Sum256([]byte("karpenter-provider-proxmox/" + string(claimUID) + "/" + strconv.Itoa(attempt)))
	digits := new(big.Int).SetBytes(sum[:]).Text(36)
	return digits[len(digits)-tokenIDLength:]
}

func (t *Tokens) expiration() []byte {
	var clk clock.PassiveClock = clock.RealClock{}
	if t.Clock != nil {
		clk = t.Clock
	}
	return []byte(clk.Now().Add(cmp.Or(t.TTL, DefaultTokenTTL)).UTC().Format(time.RFC3339))
}
