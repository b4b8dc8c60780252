// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package webpage

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
)

const (
	headerTimeout   = 10 * time.Second
	shutdownTimeout = 5 * time.Second
)

// NewServer returns a server of the page for a manager, and listens on the address. Each
// replica serves it. The certificate is self-signed and lives as long as the process. It
// fails if the address is in use.
func NewServer(ctx context.Context, address string, config *rest.Config, client *http.Client, page http.Handler) (*manager.Server, error) {
	filter, err := filters.WithAuthenticationAndAuthorization(config, client)
	if err != nil {
		return nil, fmt.Errorf("creating the authentication of the web page: %w", err)
	}
	logger := log.FromContext(ctx).WithName("webpage")
	handler, err := filter(logger, page)
	if err != nil {
		return nil, fmt.Errorf("creating the authentication of the web page: %w", err)
	}
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return nil, fmt.Errorf("creating the certificate of the web page: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("creating the certificate of the web page: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for the web page: %w", err)
	}
	timeout := shutdownTimeout
	return &manager.Server{
		Name: "webpage",
		Server: &http.Server{
			Handler: handler, ReadHeaderTimeout: headerTimeout,
			BaseContext: func(net.Listener) context.Context { return log.IntoContext(context.Background(), logger) },
		},
		Listener:        tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}),
		ShutdownTimeout: &timeout,
	}, nil
}
