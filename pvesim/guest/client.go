// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// client returns the configuration of a client with its own connections to the API
// server. It bypasses client-go's transport cache, which never evicts entries and
// would keep one for every guest. All connections are closed when ctx is done, as
// if the machine had lost power.
func (a apiAccess) client(ctx context.Context) (*rest.Config, *http.Client, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.ca) {
		return nil, nil, errors.New("the kubeconfig's certificate authority contains no certificates")
	}
	tlsConfig := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	if a.cert != nil {
		tlsConfig.Certificates = []tls.Certificate{*a.cert}
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	var roundTripper http.RoundTripper
	roundTripper = &http.Transport{
		TLSClientConfig:     tlsConfig,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second,
		IdleConnTimeout:     90 * time.Second,
		DialContext: func(dialCtx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(dialCtx, network, address)
			if err != nil {
				return nil, err
			}
			context.AfterFunc(ctx, func() {
				//nolint:errcheck // the connection is closed with its machine
				conn.Close()
			})
			return conn, nil
		},
	}
	if a.token != "" {
		roundTripper = transport.NewBearerAuthRoundTripper(a.token, roundTripper)
	}
	config := &rest.Config{
		Host: a.server,
		QPS:  -1, // no client-side rate limit
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	return config, &http.Client{Transport: roundTripper}, nil
}
