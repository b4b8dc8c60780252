// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// The range of the VMIDs of our VMs.
const (
	FirstVMID = 20000
	LastVMID  = 99999
)

// StartSimulator starts a simulated Cluster. It ends with the test.
func StartSimulator(t testing.TB, scenario *pvesim.Scenario, options pvesim.Options) *pvesim.Simulator {
	t.Helper()
	options.Web = Web()
	if options.InMemory = inSimulation(); !options.InMemory {
		options.StallTimeout = time.Minute // a busy machine pauses uploads
	}
	sim, err := pvesim.New(scenario, options)
	Must(t, err)
	Must(t, sim.Start(t.Context()))
	t.Cleanup(sim.Close)
	return sim
}

// ClusterConfig returns the configuration of a client of a simulated Cluster.
func ClusterConfig(sim *pvesim.Simulator, region string) proxmox.ClusterConfig {
	return proxmox.ClusterConfig{
		Region: region, URLs: []string{sim.URL()}, CA: string(sim.CAPEM()),
		TokenID: pvesim.DefaultTokenID, TokenSecret: pvesim.DefaultTokenSecret,
	}
}

// NewClient returns a client of a simulated Cluster with its own connections.
func NewClient(t testing.TB, sim *pvesim.Simulator, config proxmox.ClusterConfig) proxmox.Client {
	t.Helper()
	c, err := proxmox.New(config, ClientOptions(sim))
	Must(t, err)
	return c
}

// ClientOptions returns the options of clients of a simulated Cluster.
func ClientOptions(sim *pvesim.Simulator) proxmox.Options {
	if inSimulation() {
		return proxmox.Options{DialContext: sim.DialContext}
	}
	return proxmox.Options{DialTimeout: time.Minute} // a busy machine needs longer for a TLS handshake
}

// AddFault adds a fault to a simulated Cluster.
func AddFault(t testing.TB, sim *pvesim.Simulator, fault pvesim.Fault) {
	t.Helper()
	_, err := sim.AddFault(fault)
	Must(t, err)
}

// GuestState returns the power state and the configuration of a guest.
func GuestState(ctx context.Context, c proxmox.Client, row proxmox.GuestRow) (string, error) {
	cfg, err := c.VMConfig(ctx, row.Host, row.VMID)
	if err != nil {
		return "", err
	}
	raw, err := json.Marshal(cfg.Options)
	if err != nil {
		return "", err
	}
	status, err := c.VMStatus(ctx, row.Host, row.VMID)
	return fmt.Sprintf("%s %s", status.Status, raw), err
}

// Must fails the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// PostToProxmox makes a call that the controller does not make, as an administrator does.
func (w *Env) PostToProxmox(path string, form url.Values) {
	w.T.Helper()
	request, err := http.NewRequestWithContext(w.T.Context(), http.MethodPost, w.Sim.URL()+path, strings.NewReader(form.Encode()))
	w.Expect(err).NotTo(gomega.HaveOccurred())
	request.Header.Set("Authorization", "PVEAPIToken="+pvesim.DefaultTokenID+"="+pvesim.DefaultTokenSecret)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	authorities := x509.NewCertPool()
	authorities.AppendCertsFromPEM(w.Sim.CAPEM())
	tlsConfig := &tls.Config{RootCAs: authorities, MinVersion: tls.VersionTLS12}
	transport := &http.Transport{TLSClientConfig: tlsConfig, DialContext: ClientOptions(w.Sim).DialContext}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	w.Expect(response.Body.Close()).To(gomega.Succeed())
	w.Expect(response.StatusCode).To(gomega.Equal(http.StatusOK))
}

// OtherHost returns the other one of two Hosts.
func OtherHost(host string) string { return map[string]string{"pve1": "pve2", "pve2": "pve1"}[host] }
