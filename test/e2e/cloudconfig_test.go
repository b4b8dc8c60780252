// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/test/harness"
)

// Another token of the controller's user.
const (
	secondTokenID     = "kubernetes@pve!second"
	secondTokenSecret = "22222222-3333-4444-5555-666666666666"
)

// TestCloudConfig starts the controller with an invalid cloud config, then with a cluster that is down. When the cluster
// returns, Nodes are launched while the token, the CA and the address change. No NodeClaim may fail.
func TestCloudConfig(t *testing.T) {
	t.Parallel()
	needs(t, simulator("it revokes credentials"))
	e := newEnv(t, setup{idle: true, featureGates: "StaticCapacity=true", scenario: func(s *pvesim.Scenario) {
		i := slices.IndexFunc(s.Users, func(u pvesim.User) bool { return strings.HasPrefix(secondTokenID, u.ID+"!") })
		s.Users[i].Tokens = append(s.Users[i].Tokens, pvesim.Token{ID: "second", Secret: secondTokenSecret})
	}})
	front := newRotatingProxy(t, e.proxmox)
	ports, err := harness.FreePorts(1)
	must(t, err)
	first := fmt.Sprintf("127.0.0.1:%d", ports[0])
	before := e.proxmox.Cluster(e.region)
	cluster := harness.Cluster{
		Region: e.region, URLs: []string{"https://" + first},
		CAFile: filepath.Join(e.dir, "ca.pem"), TokenIDFile: filepath.Join(e.dir, "token-id"), TokenSecretFile: filepath.Join(e.dir, "token-secret"),
	}
	front.renew(t, cluster.CAFile)
	replaceFile(t, cluster.TokenIDFile, before.TokenID)
	replaceFile(t, cluster.TokenSecretFile, before.TokenSecret)

	t.Run("invalid", e.invalidConfig)
	must(t, e.controller.Configure(cluster))
	must(t, e.controller.StartProcess()) // it is not ready without a cluster
	p := e.newStaticNodePool(t, "rotation", "c1.1VCPU-2GB", 0)
	var endpoint *harness.Forward
	t.Run("down_at_start", func(t *testing.T) {
		p.waitForReachable(t, false)
		NewWithT(t).Expect(e.logOf(t)).To(MatchRegexp(`"level":"ERROR".*"connecting to the Proxmox cluster failed.*%s`, filepath.Base(e.controller.CloudConfig())))
		endpoint, err = harness.StartForward(e.ctx, first, front.address)
		must(t, err)
		p.waitForReachable(t, true)
	})
	cluster.URLs = append(cluster.URLs, "https://"+front.address)
	t.Run("changed_while_running", func(t *testing.T) { e.changedConfig(t, cluster) })

	const nodes = 9
	t.Run("rotated", func(t *testing.T) {
		for n, rotate := range []func(){
			func() {
				replaceFile(t, cluster.TokenIDFile, secondTokenID)
				replaceFile(t, cluster.TokenSecretFile, secondTokenSecret)
				front.revoked.Store(&before.TokenID)
			},
			func() { front.renew(t, cluster.CAFile) },
			endpoint.Close,
		} {
			p.setReplicas(t, (n+1)*nodes/3)
			p.waitForClaims(t, (n+1)*nodes/3, "are planned", hasIntent)
			rotate()
		}
		p.waitForNodes(t, nodes)
		clones := 0
		for _, request := range e.proxmox.Requests() {
			if request.Method == http.MethodPost && strings.HasSuffix(request.Path, "/clone") && request.Status == http.StatusOK {
				clones++
			}
		}
		NewWithT(t).Expect(clones).To(Equal(nodes), "clones; more mean that claims failed")
	})
}

// invalidConfig checks that an invalid file ends the controller with one line that names the file, the field and the fix.
func (e *env) invalidConfig(t *testing.T) {
	must(t, e.controller.Configure(harness.Cluster{
		Region: e.region, URLs: []string{"http://127.0.0.1:8006"}, TokenID: secondTokenID, TokenSecret: secondTokenSecret,
	}))
	output, exit, err := e.controller.Run(e.ctx)
	must(t, err)
	g := NewWithT(t)
	g.Expect(exit).NotTo(BeZero())
	g.Expect(strings.TrimSpace(output)).To(And(HavePrefix("error: "), Not(ContainSubstring("\n")), Not(ContainSubstring(secondTokenSecret)),
		ContainSubstring(e.controller.CloudConfig()), ContainSubstring("clusters[0].url"), ContainSubstring("want https://host:8006")))
}

// changedConfig checks that the controller exits when a setting that is read only at start changes, and uses it after a restart.
func (e *env) changedConfig(t *testing.T, cluster harness.Cluster) {
	must(t, e.controller.Configure(cluster))
	g := NewWithT(t)
	g.Eventually(e.controller.Done()).WithTimeout(timeout()).Should(BeClosed())
	g.Expect(e.logOf(t)).To(And(ContainSubstring("configuration file changed, exiting to reload"), Not(ContainSubstring("panic"))), "%v", e.controller.ExitError())
	must(t, e.controller.Start(e.ctx))
}

// waitForReachable waits for the status of ClustersReachable, and for the events and the metric of a cluster that is not reachable.
func (p *nodePool) waitForReachable(t *testing.T, status bool) {
	t.Helper()
	p.eventually(t, fmt.Sprintf("ClustersReachable to be %t", status), func(g Gomega) {
		class := &v1alpha1.ProxmoxNodeClass{}
		g.Expect(p.kube.Get(p.ctx, client.ObjectKeyFromObject(p.kit.Class), class)).To(Succeed())
		c := class.StatusConditions().Get(v1alpha1.ConditionClustersReachable)
		g.Expect(c.IsUnknown()).To(BeFalse())
		g.Expect(c.IsTrue()).To(Equal(status), c.Message)
	})
	p.waitForEvent(t, p.name, v1alpha1.ConditionClustersReachable)
	p.eventually(t, "failed polls to be counted", func(g Gomega) {
		g.Expect(p.controller.Metric(p.ctx, "karpenter_proxmox_inventory_poll_errors_total", map[string]string{"region": p.region})).NotTo(BeZero())
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
	certificate atomic.Pointer[tls.Certificate]
	// revoked is the ID of the deleted token.
	revoked atomic.Pointer[string]
}

func newRotatingProxy(t *testing.T, proxmox *harness.Proxmox) *rotatingProxy {
	t.Helper()
	f := &rotatingProxy{}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(proxmox.CAPEM())
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: proxmox.Host()})
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
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*f.certificate.Load()}}, nil
	}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it would log every failed handshake during the rotation
	server.StartTLS()
	t.Cleanup(server.Close)
	f.address = server.Listener.Addr().String()
	return f
}

// renew changes to a certificate of another CA, which it writes to a file.
func (f *rotatingProxy) renew(t *testing.T, caFile string) {
	t.Helper()
	parent := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: rand.Text()}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	ca, err := x509.CreateCertificate(rand.Reader, parent, parent, key.Public(), key)
	must(t, err)
	f.certificate.Store(&tls.Certificate{Certificate: [][]byte{ca}, PrivateKey: key})
	replaceFile(t, caFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca})))
}
