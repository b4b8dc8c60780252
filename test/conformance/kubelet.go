// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

// kubeletServer is what the API server calls on the system node: logs and port forwarding of
// the controller's pods.
type kubeletServer struct {
	node   *systemNode
	server *httptest.Server
	port   int32
}

func startKubeletServer(node *systemNode) (*kubeletServer, error) {
	k := &kubeletServer{node: node}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.logs)
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.portForward)
	k.server = httptest.NewUnstartedServer(mux)
	k.server.TLS = &tls.Config{NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12} // HTTP/2 cannot be upgraded to SPDY
	k.server.StartTLS()
	address, ok := k.server.Listener.Addr().(*net.TCPAddr)
	if !ok {
		return nil, errors.New("starting kubelet: TCP listener has no TCP address")
	}
	k.port = int32(address.Port) //nolint:gosec // a port
	return k, nil
}

// logs returns where the log is. The suites print it after each spec, and it grows.
func (k *kubeletServer) logs(w http.ResponseWriter, r *http.Request) {
	pod := k.node.find(r.PathValue("pod"))
	if pod == nil {
		http.Error(w, "pod not found", http.StatusNotFound)
		return
	}
	fmt.Fprintln(w, pod.controller.Log())
}

func (k *kubeletServer) portForward(w http.ResponseWriter, r *http.Request) {
	portforward.ServePortForward(w, r, k, r.PathValue("pod"), "", nil, time.Hour, time.Minute, []string{portforward.ProtocolV1Name})
}

// PortForward copies data between a stream and the controller's metrics, which have another
// port than in a real pod.
func (k *kubeletServer) PortForward(ctx context.Context, name, _ string, _ int32, stream io.ReadWriteCloser) error {
	pod := k.node.find(name)
	if pod == nil {
		return fmt.Errorf("forwarding port: pod %s not found", name)
	}
	target, err := url.Parse(pod.controller.MetricsURL())
	if err != nil {
		return fmt.Errorf("forwarding port: %w", err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target.Host)
	if err != nil {
		return fmt.Errorf("forwarding port: %w", err)
	}
	defer func() { _ = conn.Close() }()
	go func() { _, _ = io.Copy(conn, stream) }()
	if _, err = io.Copy(stream, conn); err != nil {
		return fmt.Errorf("forwarding port: %w", err)
	}
	return nil
}

func (k *kubeletServer) close() { k.server.Close() }

// logf writes to the log of the world.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}
