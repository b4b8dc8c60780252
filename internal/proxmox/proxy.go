// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// proxySchemes are the kinds of proxies that net/http supports.
var proxySchemes = []string{"http", "https", "socks5", "socks5h"}

func (c *ClusterConfig) checkProxy() error {
	if c.ProxyURL == "" {
		return nil
	}
	if _, err := parseProxyURL(c.ProxyURL); err != nil {
		return fmt.Errorf("proxy_url: %w", err)
	}
	return nil
}

// parseProxyURL parses the URL of a proxy. Its error contains the URL only if it has no
// user and password.
func parseProxyURL(text Secret) (*url.URL, error) {
	want := "want " + strings.Join(proxySchemes, ", ") + " with host and port, for instance http://proxy.example.com:3128"
	u, err := url.Parse(string(text))
	if err != nil || u.User != nil && !isProxyURL(u) || strings.Contains(string(text), "@") && u.User == nil {
		return nil, errors.New("found a value that is not the URL of a proxy, " + want)
	}
	if !isProxyURL(u) {
		return nil, fmt.Errorf("found %q, %s", string(text), want)
	}
	return u, nil
}

func isProxyURL(u *url.URL) bool {
	return slices.Contains(proxySchemes, u.Scheme) && u.Hostname() != "" && (u.Path == "" || u.Path == "/") && u.RawQuery == "" && u.Fragment == ""
}

// setProxy sends all requests through a proxy. The Cluster's CA and fingerprints are not
// those of a proxy with TLS, which is verified with the CAs of the system.
func setProxy(transport *http.Transport, proxy Secret, dialer *net.Dialer) error {
	if proxy == "" {
		return nil
	}
	u, err := parseProxyURL(proxy)
	if err != nil {
		return fmt.Errorf("proxy_url: %w", err)
	}
	transport.Proxy = http.ProxyURL(u)
	if u.Scheme == "https" {
		// Only connections to the proxy use this dialer: that to Proxmox is inside of it.
		transport.DialTLSContext = (&tls.Dialer{NetDialer: dialer, Config: &tls.Config{MinVersion: tls.VersionTLS12}}).DialContext
	}
	return nil
}
