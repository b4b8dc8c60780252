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

// client makes a connection of the guest's own to the API server. client-go's
// shared cache of transports is passed by: it would keep one for every guest
// that ever lived. All connections end with ctx, as a machine's do when its
// power is cut.
func (a apiAccess) client(ctx context.Context) (*rest.Config, *http.Client, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(a.ca) {
		return nil, nil, errors.New("the kubeconfig's certificate authority holds no certificate")
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
				//nolint:errcheck // the connection ends with its machine
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
		QPS:  -1, // the machine is the limit, as for a kubelet that has few pods
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	return config, &http.Client{Transport: roundTripper}, nil
}
