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

// idleTimeout is below the 5 s after which Proxmox closes an idle connection: the
// outcome of a request on a closing connection is unknown.
const idleTimeout = 3 * time.Second

func newHTTPTransport(cfg ClusterConfig, opts Options) (*http.Transport, error) {
	tlsConfig, err := tlsConfigOf(cfg)
	if err != nil {
		return nil, err
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // Proxmox supports no other
	dialer := &net.Dialer{Timeout: opts.DialTimeout, KeepAlive: 15 * time.Second}
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSClientConfig:       tlsConfig,
		TLSHandshakeTimeout:   opts.DialTimeout,
		ResponseHeaderTimeout: opts.ResponseTimeout,
		IdleConnTimeout:       idleTimeout,
		MaxIdleConnsPerHost:   MaxConnections,
		Protocols:             protocols,
	}
	if opts.DialContext != nil {
		transport.DialContext = opts.DialContext
	}
	return transport, setProxy(transport, cfg.ProxyURL, dialer)
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
		// The fingerprint replaces the verification of chain and name: a Host's
		// self-signed certificate has no public CA, and may lack the URL's address.
		config.InsecureSkipVerify = true
		config.VerifyConnection = func(state tls.ConnectionState) error { return checkPin(state, pins) }
	case cfg.Insecure:
		config.InsecureSkipVerify = true // configured
	case cfg.CA != "":
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(cfg.CA)) {
			return nil, errors.New("no certificate found in the CA: want PEM, such as the contents of /etc/pve/pve-root-ca.pem")
		}
	}
	return config, nil
}

// pinError is a certificate without a configured fingerprint.
type pinError struct{ seen string }

func (e *pinError) Error() string {
	return "the certificate's fingerprint is " + e.seen + ", which is not a configured one"
}

func checkPin(state tls.ConnectionState, pins []string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the server sent no certificate")
	}
	seen := fingerprintOf(state.PeerCertificates[0])
	if slices.Contains(pins, seen) {
		return nil
	}
	return &pinError{seen: seen}
}

// fingerprintOf returns a fingerprint in the format of Proxmox's tools: AB:CD:...
func fingerprintOf(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.Raw)
	return formatFingerprint(sum[:])
}

// parseFingerprint parses a SHA-256 fingerprint with or without colons.
func parseFingerprint(text string) (string, error) {
	digits := strings.ReplaceAll(strings.TrimSpace(text), ":", "")
	sum, err := hex.DecodeString(digits)
	if err != nil || len(sum) != sha256.Size {
		return "", fmt.Errorf("found %q, want a SHA-256 fingerprint: 32 bytes in hex, as \"pvenode cert info\" shows", text)
	}
	return formatFingerprint(sum), nil
}

func formatFingerprint(sum []byte) string {
	return strings.ReplaceAll(fmt.Sprintf("% X", sum), " ", ":")
}
