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
)

const (
	headerTimeout   = 10 * time.Second
	idleTimeout     = time.Minute
	shutdownTimeout = 5 * time.Second
)

// NewServer returns a server of the page for a manager, and listens on the address. Each
// replica serves it. The certificate is self-signed and lives as long as the process. It
// fails if the address is in use.
func NewServer(ctx context.Context, address string, config *rest.Config, client *http.Client, page http.Handler) (*manager.Server, error) {
	handler, err := protect(config, client, page)
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
	logger, timeout := log.FromContext(ctx).WithName("webpage"), shutdownTimeout
	return &manager.Server{
		Name: "webpage",
		Server: &http.Server{
			Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
			BaseContext: func(net.Listener) context.Context { return log.IntoContext(context.Background(), logger) },
		},
		Listener:        tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}),
		ShutdownTimeout: &timeout,
	}, nil
}
