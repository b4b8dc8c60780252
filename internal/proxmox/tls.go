// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"
)

// idleTimeout stays well under the 5 s after which Proxmox closes an idle
// connection: a request written into a closing connection has an unknown outcome.
const idleTimeout = 3 * time.Second

// newHTTPTransport makes the connections to a Cluster.
func newHTTPTransport(cfg ClusterConfig, opts Options) (*http.Transport, error) {
	tlsConfig, err := tlsConfigOf(cfg)
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // Proxmox speaks no other
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: opts.DialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:       tlsConfig,
		TLSHandshakeTimeout:   opts.DialTimeout,
		ResponseHeaderTimeout: opts.ResponseTimeout,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConnsPerHost:   16,
		Protocols:             protocols,
	}, nil
}

func tlsConfigOf(cfg ClusterConfig) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	switch {
	case len(cfg.Fingerprints) > 0:
		pins := make([]string, 0, len(cfg.Fingerprints))
		for _, fingerprint := range cfg.Fingerprints {
			pin, err := parseFingerprint(fingerprint)
			if err != nil {
				return nil, err
			}
			pins = append(pins, pin)
		}
		// The pin replaces the chain and the name: the self-signed certificate of
		// a Host names neither a public CA nor always the address we use.
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(state tls.ConnectionState) error { return checkPin(state, pins) }
	case cfg.Insecure:
		config.InsecureSkipVerify = true // the operator asked for it
	case cfg.CA != "":
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(cfg.CA)) {
			return nil, errors.New("no certificate found in the CA: it wants PEM, such as the contents of /etc/pve/pve-root-ca.pem")
		}
	}
	return config, nil
}

// pinError says that a Host shows another certificate than the pinned one.
type pinError struct{ seen string }

func (e *pinError) Error() string {
	return "the certificate's fingerprint is " + e.seen + ", which is not a configured one"
}

func checkPin(state tls.ConnectionState, pins []string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server shows no certificate")
	}
	seen := fingerprintOf(state.PeerCertificates[0])
	if slices.Contains(pins, seen) {
		return nil
	}
	return &pinError{seen: seen}
}

// fingerprintOf writes a fingerprint as Proxmox's own tools do: AB:CD:...
func fingerprintOf(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":")
}

// parseFingerprint reads a sha256 fingerprint with or without colons.
func parseFingerprint(text string) (string, error) {
	digits := strings.ReplaceAll(strings.TrimSpace(text), ":", "")
	sum, err := hex.DecodeString(digits)
	if err != nil || len(sum) != sha256.Size {
		return "", fmt.Errorf("found %q, want a SHA-256 fingerprint: 32 bytes in hex, as \"pvenode cert info\" shows", text)
	}
	parts := make([]string, len(sum))
	for i, b := range sum {
		parts[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(parts, ":"), nil
}
