// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
)

// Cluster is one entry of the controller's cloud config.
type Cluster struct {
	Region      string   `json:"region"`
	URLs        []string `json:"urls"`
	CA          string   `json:"ca,omitempty"`
	CAFile      string   `json:"ca_file,omitempty"`
	Fingerprint string   `json:"fingerprint,omitempty"`
	Insecure    bool     `json:"insecure,omitempty"`
	TokenID     string   `json:"token_id,omitempty"`
	TokenSecret string   `json:"token_secret,omitempty"`
	// TokenIDFile and TokenSecretFile are paths of files that may change while the controller
	// runs.
	TokenIDFile     string `json:"token_id_file,omitempty"`
	TokenSecretFile string `json:"token_secret_file,omitempty"`
	// Root is used for operations that Proxmox does not allow with a token.
	Root *RootLogin `json:"root,omitempty"`
}

// RootLogin is the root login in the cloud config.
type RootLogin struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// tlsConfig returns how the certificates of the cluster's hosts are verified.
func (c Cluster) tlsConfig() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case c.Insecure:
		config.InsecureSkipVerify = true
	case c.Fingerprint != "":
		config.InsecureSkipVerify = true // the fingerprint is checked instead
		known := strings.Split(strings.ToLower(strings.ReplaceAll(c.Fingerprint, ":", "")), ";")
		config.VerifyConnection = func(state tls.ConnectionState) error {
			sum := sha256.Sum256(state.PeerCertificates[0].Raw)
			if !slices.Contains(known, hex.EncodeToString(sum[:])) {
				return errors.New("certificate fingerprint differs from the cloud config")
			}
			return nil
		}
	case c.CA != "":
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(c.CA)) {
			return nil, errors.New("creating Proxmox client: the CA has no certificate")
		}
	}
	return config, nil
}
