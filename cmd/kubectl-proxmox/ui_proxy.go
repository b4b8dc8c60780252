// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/webpage"
)

// uiProxy sends requests to the page with the user's token. Other users of the machine and
// other websites can reach the local port too, so a request needs a random key, which the
// printed address contains.
type uiProxy struct {
	key string
	// cookie is the name of the cookie with the key. Browsers send the cookies of 127.0.0.1 to all
	// ports, so the name must be unique: another session would overwrite the cookie.
	cookie  string
	forward *httputil.ReverseProxy
}

// newUIProxy returns a proxy to a page at a local address. The page's certificate is
// self-signed; the connection goes through the API server.
func newUIProxy(target string, user *rest.Config) (*uiProxy, error) {
	config, err := user.TransportConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the credentials of the kubeconfig: %w", err)
	}
	config.TLS = transport.TLSConfig{Insecure: true}
	// The proxy of the kubeconfig is for the API server; the target is on this machine.
	config.Proxy, config.DialHolder = func(*http.Request) (*url.URL, error) { return nil, nil }, nil
	authenticated, err := transport.New(config)
	if err != nil {
		return nil, fmt.Errorf("reading the credentials of the kubeconfig: %w", err)
	}
	page := &url.URL{Scheme: "https", Host: target}
	return &uiProxy{key: rand.Text(), cookie: "kubectl-proxmox-ui-" + rand.Text()[:8], forward: &httputil.ReverseProxy{
		Transport: authenticated,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(page)
			r.Out.Header.Del("Cookie")
		},
	}}, nil
}

// address returns the address that opens the page.
func (p *uiProxy) address(listener string) string {
	return "http://" + listener + "/?key=" + p.key
}

// ServeHTTP checks the key and forwards the request.
func (p *uiProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/" && p.isKey(r.URL.Query().Get("key")) {
		http.SetCookie(w, &http.Cookie{Name: p.cookie, Value: p.key, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}) //nolint:gosec // the proxy listens on the loopback interface without TLS
		http.Redirect(w, r, webpage.Path, http.StatusSeeOther)
		return
	}
	if cookie, err := r.Cookie(p.cookie); err != nil || !p.isKey(cookie.Value) {
		http.Error(w, "open the address that kubectl proxmox ui printed", http.StatusForbidden)
		return
	}
	p.forward.ServeHTTP(w, r)
}

func (p *uiProxy) isKey(key string) bool {
	return subtle.ConstantTimeCompare([]byte(key), []byte(p.key)) == 1
}
