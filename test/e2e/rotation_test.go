// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// TestRotation revokes the token, then the CA, then stops the first address while twenty Nodes
// are launched. No NodeClaim may fail.
func TestRotation(t *testing.T) {
	t.Parallel()
	const nodes = 20
	needs(t, simulator("it revokes credentials"))
	e := newEnv(t, setup{idle: true, featureGates: "StaticCapacity=true"})
	front := newRotatingProxy(t, e.proxmox)
	first := newEndpointTo(t, front.address)
	first.start()

	files := harness.Cluster{
		Region: e.region, URLs: []string{"https://" + first.address, "https://" + front.address},
		CAFile: filepath.Join(e.dir, "ca.pem"), TokenIDFile: filepath.Join(e.dir, "token-id"), TokenSecretFile: filepath.Join(e.dir, "token-secret"),
	}
	before := e.proxmox.Cluster(e.region)
	replaceFile(t, files.CAFile, front.ca())
	replaceFile(t, files.TokenIDFile, before.TokenID)
	replaceFile(t, files.TokenSecretFile, before.TokenSecret)
	must(t, e.controller.Configure(files))
	must(t, e.controller.Start(t.Context()))

	p := e.newStaticNodePool(t, "rotation", "c1.1VCPU-2GB", nodes)
	p.waitForLaunches(t, 2)
	replaceFile(t, files.TokenIDFile, harness.SecondTokenID)
	replaceFile(t, files.TokenSecretFile, harness.SecondTokenSecret)
	front.revoked.Store(&before.TokenID)
	p.waitForLaunches(t, 5)
	front.renew(t)
	replaceFile(t, files.CAFile, front.ca())
	p.waitForLaunches(t, 8)
	first.stop()

	p.waitForNodes(t, nodes)
	clones := 0
	for _, request := range e.proxmox.Requests() {
		if request.Method == http.MethodPost && strings.HasSuffix(request.Path, "/clone") && request.Status == http.StatusOK {
			clones++
		}
	}
	if clones != nodes {
		t.Errorf("%d VMs were cloned for %d Nodes, so claims failed", clones, nodes)
	}
	p.setReplicas(t, 0)
	p.waitUntilGone(t)
	e.changedConfig(t, files)
}

// changedConfig checks that the controller exits when a setting that is read only at start
// changes, and uses it after a restart. An invalid file must not end it.
func (e *env) changedConfig(t *testing.T, cluster harness.Cluster) {
	t.Helper()
	must(t, e.controller.Configure(harness.Cluster{Region: e.region}))
	e.eventually(t, "the invalid file to be logged", func(context.Context) error {
		if !e.controller.Running() {
			t.Fatal(e.controller.ExitError())
		}
		if !strings.Contains(e.logOf(t), "changed configuration file is invalid") {
			return errors.New("it is not in the log")
		}
		return nil
	})
	cluster.URLs = cluster.URLs[1:]
	must(t, e.controller.Configure(cluster))
	select {
	case <-e.controller.Done():
	case <-time.After(timeout()):
		t.Fatal("the controller did not exit after the cloud config changed")
	}
	if log := e.logOf(t); !strings.Contains(log, "configuration file changed, exiting to reload") || strings.Contains(log, "panic") {
		t.Errorf("the controller exited for another reason: %v", e.controller.ExitError())
	}
	must(t, e.controller.Start(t.Context()))
}

// waitForLaunches waits until at least so many VMs of the NodePool are launched.
func (p *nodePool) waitForLaunches(t *testing.T, want int) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("%d launched VMs", want), func(ctx context.Context) error {
		claims, err := p.claims(ctx)
		done := 0
		for i := range claims {
			if claims[i].Annotations[v1alpha1.AnnotationLaunchCompleted] != "" {
				done++
			}
		}
		if err != nil || done < want {
			return fmt.Errorf("%d of %d claims are launched (%w)", done, len(claims), err)
		}
		return nil
	})
}

// replaceFile replaces a file atomically, as kubelet does with a mounted Secret.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(content), 0o600))
	must(t, os.Rename(path+".new", path))
}

// rotatingProxy is an address of a Proxmox cluster whose certificate and token can be changed.
type rotatingProxy struct {
	address     string
	certificate atomic.Pointer[authority]
	// revoked is the ID of the deleted token.
	revoked atomic.Pointer[string]
}

func newRotatingProxy(t *testing.T, proxmox *harness.Proxmox) *rotatingProxy {
	t.Helper()
	f := &rotatingProxy{}
	f.renew(t)
	behind := &url.URL{Scheme: "https", Host: proxmox.Host()}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(proxmox.CAPEM())
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if id := f.revoked.Load(); id != nil && strings.Contains(request.Header.Get("Authorization"), *id+"=") {
			http.Error(response, "no such token", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(response, request)
	}))
	// GetCertificate is not called without a server name, as for an IP address.
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{f.certificate.Load().leaf}}, nil
	}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it would log every failed handshake during the rotation
	server.StartTLS()
	t.Cleanup(server.Close)
	f.address = server.Listener.Addr().String()
	return f
}

// renew changes to another certificate of another CA.
func (f *rotatingProxy) renew(t *testing.T) {
	t.Helper()
	f.certificate.Store(newAuthority(t))
}

// ca returns the CA of the certificate as PEM.
func (f *rotatingProxy) ca() string { return f.certificate.Load().ca }
