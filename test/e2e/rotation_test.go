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

// TestRotationUnderLoad takes away, one after the other and while twenty Nodes
// are launched, the token, the CA and the first address. No claim fails.
func TestRotationUnderLoad(t *testing.T) {
	t.Parallel()
	const nodes = 20
	needs(t, simulator("it takes the credentials away"))
	w := newWorld(t, setup{idle: true, featureGates: "StaticCapacity=true"})
	front := newFront(t, w.proxmox)
	first := newDoorTo(t, front.address)
	first.open()

	files := harness.Cluster{
		Region: w.region, URLs: []string{"https://" + first.address, "https://" + front.address},
		CAFile: filepath.Join(w.dir, "ca.pem"), TokenIDFile: filepath.Join(w.dir, "token-id"), TokenSecretFile: filepath.Join(w.dir, "token-secret"),
	}
	before := w.proxmox.Cluster(w.region)
	replaceFile(t, files.CAFile, front.ca())
	replaceFile(t, files.TokenIDFile, before.TokenID)
	replaceFile(t, files.TokenSecretFile, before.TokenSecret)
	must(t, w.controller.Configure(files))
	must(t, w.controller.Start(t.Context()))

	p := w.newStaticPool(t, "rotation", "c1.1VCPU-2GB", nodes)
	p.launched(t, 2)
	replaceFile(t, files.TokenIDFile, harness.SecondTokenID)
	replaceFile(t, files.TokenSecretFile, harness.SecondTokenSecret)
	front.refused.Store(&before.TokenID)
	p.launched(t, 5)
	front.renew(t)
	replaceFile(t, files.CAFile, front.ca())
	p.launched(t, 8)
	first.close()

	p.nodes(t, nodes)
	clones := 0
	for _, request := range w.proxmox.Requests() {
		if request.Method == http.MethodPost && strings.HasSuffix(request.Path, "/clone") && request.Status == http.StatusOK {
			clones++
		}
	}
	if clones != nodes {
		t.Errorf("%d VMs were cloned for %d Nodes: claims failed", clones, nodes)
	}
	p.replicas(t, 0)
	p.nothingLeft(t)
	w.changedConfig(t, files)
}

// changedConfig: what can be read only at the start makes the controller end, and the
// next one, which Kubernetes would start, has it. A file with a mistake changes nothing.
func (w *world) changedConfig(t *testing.T, cluster harness.Cluster) {
	t.Helper()
	must(t, w.controller.Configure(harness.Cluster{Region: w.region}))
	w.eventually(t, "the mistake to be told", func(context.Context) error {
		if !w.controller.Running() {
			t.Fatal(w.controller.Ended())
		}
		if !strings.Contains(w.logOf(t), "changed configuration file is invalid") {
			return errors.New("the log does not tell")
		}
		return nil
	})
	cluster.URLs = cluster.URLs[1:]
	must(t, w.controller.Configure(cluster))
	select {
	case <-w.controller.Done():
	case <-time.After(patience()):
		t.Fatal("a changed cloud config was not noticed")
	}
	if log := w.logOf(t); !strings.Contains(log, "configuration file changed, exiting to reload") || strings.Contains(log, "panic") {
		t.Errorf("the controller ended otherwise: %v", w.controller.Ended())
	}
	must(t, w.controller.Start(t.Context()))
}

// launched waits until so many VMs of the pool run.
func (p *pool) launched(t *testing.T, want int) {
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

// replaceFile writes as a mounted Secret is replaced: all at once.
func replaceFile(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path+".new", []byte(content), 0o600))
	must(t, os.Rename(path+".new", path))
}

// front is an address of a Proxmox cluster whose certificate can be renewed.
type front struct {
	address     string
	certificate atomic.Pointer[authority]
	// refused is the token that was deleted.
	refused atomic.Pointer[string]
}

func newFront(t *testing.T, proxmox *harness.Proxmox) *front {
	t.Helper()
	f := &front{}
	f.renew(t)
	behind := &url.URL{Scheme: "https", Host: proxmox.Host()}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(proxmox.CAPEM())
	proxy := httputil.NewSingleHostReverseProxy(behind)
	proxy.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		if id := f.refused.Load(); id != nil && strings.Contains(request.Header.Get("Authorization"), *id+"=") {
			http.Error(response, "no such token", http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(response, request)
	}))
	// Not GetCertificate: without a name in the hello, as for an address, it is not asked.
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{f.certificate.Load().leaf}}, nil
	}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it would tell of every handshake in the middle of the rotation
	server.StartTLS()
	t.Cleanup(server.Close)
	f.address = server.Listener.Addr().String()
	return f
}

// renew gives the front another certificate, of another CA.
func (f *front) renew(t *testing.T) {
	t.Helper()
	f.certificate.Store(newAuthority(t))
}

// ca that signed the certificate, PEM.
func (f *front) ca() string { return f.certificate.Load().ca }
