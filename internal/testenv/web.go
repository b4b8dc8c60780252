// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// memoryWeb are the web servers of all simulations, without sockets.
var memoryWeb struct {
	servers sync.Map // of http.Handler by host
	count   atomic.Int32
}

// ServeWeb starts a web server and returns its URL. It ends with the test. In a simulation, only clients with the transport
// of Web reach it.
func ServeWeb(t testing.TB, handler http.Handler) string {
	t.Helper()
	if !inSimulation() {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		return server.URL
	}
	host := fmt.Sprintf("web%d.example.com", memoryWeb.count.Add(1))
	memoryWeb.servers.Store(host, handler)
	t.Cleanup(func() { memoryWeb.servers.Delete(host) })
	return "http://" + host
}

// Web returns the transport of clients of web servers: in a simulation without sockets, nil otherwise.
func Web() http.RoundTripper {
	if !inSimulation() {
		return nil
	}
	return memoryTransport{}
}

// memoryTransport sends requests to the servers of memoryWeb. All other servers refuse connections.
type memoryTransport struct{}

// RoundTrip returns the response when it is complete, or fails when the request is canceled.
func (memoryTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	handler, ok := memoryWeb.servers.Load(request.URL.Host)
	if !ok {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	}
	recorder := httptest.NewRecorder()
	handler.(http.Handler).ServeHTTP(recorder, request)
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	return recorder.Result(), nil
}
