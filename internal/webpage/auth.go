// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package webpage

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	reviewTimeout = 10 * time.Second
	// Answers of the API server are cached. A denied user is often allowed a moment later.
	tokenCacheTTL = time.Minute
	allowCacheTTL = 5 * time.Minute
	denyCacheTTL  = 30 * time.Second
)

// protected serves a page to users whom the API server authenticates and allows to get its
// path. It is not controller-runtime's filter for metrics, which reports an invalid token as
// an internal error.
type protected struct {
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
	page          http.Handler
}

func protect(config *rest.Config, client *http.Client, page http.Handler) (http.Handler, error) {
	authentication, err := authenticationv1.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	authorization, err := authorizationv1.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	backoff := &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
	p := &protected{page: page}
	p.authenticator, _, err = authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: authentication, TokenAccessReviewTimeout: reviewTimeout, CacheTTL: tokenCacheTTL, WebhookRetryBackoff: backoff,
	}.New()
	if err != nil {
		return nil, err
	}
	p.authorizer, err = authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: authorization, AllowCacheTTL: allowCacheTTL, DenyCacheTTL: denyCacheTTL, WebhookRetryBackoff: backoff,
	}.New()
	return p, err
}

// ServeHTTP checks the user and serves the page.
func (p *protected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	logger := log.FromContext(r.Context())
	found, ok, err := p.authenticator.AuthenticateRequest(r)
	if err != nil || !ok {
		logger.V(1).Info("authentication failed", "error", err)
		http.Error(w, "Unauthorized: the request has no token, or the token is invalid or has expired", http.StatusUnauthorized)
		return
	}
	user := found.User
	decision, reason, err := p.authorizer.Authorize(r.Context(), authorizer.AttributesRecord{User: user, Verb: strings.ToLower(r.Method), Path: r.URL.Path})
	if err != nil {
		logger.Error(err, "authorization failed", "user", user.GetName())
		http.Error(w, fmt.Sprintf("Checking the permissions of user %s failed", user.GetName()), http.StatusInternalServerError)
		return
	}
	if decision != authorizer.DecisionAllow {
		logger.V(1).Info("authorization denied", "user", user.GetName(), "reason", reason)
		http.Error(w, fmt.Sprintf("Forbidden: user %s may not %s %s", user.GetName(), strings.ToLower(r.Method), r.URL.Path), http.StatusForbidden)
		return
	}
	p.page.ServeHTTP(w, r)
}
